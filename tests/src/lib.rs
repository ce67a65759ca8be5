//! What the tests over real processes share: a running `skein serve`, an SSE client that keeps a history, and
//! the sentence by which two histories are compared.

pub mod client;
pub mod etcd;
pub mod process;
