//! A request's answer as text: its stream, what a client already has of it, and the threads that do the work.

mod control_marks;
mod reasoning_count;
pub mod remainder;
pub mod text_stream;
pub(crate) mod work;
