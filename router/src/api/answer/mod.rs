//! What the answers of several APIs share: the streams of a call merged into one, text split into reasoning
//! and calls, the events of a stream and their ids, and the common parts of JSON objects.

pub mod call_arguments;
pub mod call_stream;
pub mod choices;
pub mod events;
pub mod logprobs;
pub mod moves;
pub mod numbers;
pub mod progress;
pub mod response_id;
pub mod shapes;
pub mod single;
pub mod written;
