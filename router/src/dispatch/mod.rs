//! Delivers one request: opens a stream at a worker and, on any fault, resumes it at another.
//!
//! [`delivery`] decides, purely: what the client has, what to drop, when to move. `driver` holds the stream
//! and carries out the decisions, `open` opens it, `reader` is the router's end of it, `watch` ends a wait
//! that has become pointless, `attempts` makes the spans of the calls.

mod attempts;
pub mod delivery;
pub(crate) mod driver;
mod open;
mod reader;
mod watch;

#[cfg(test)]
mod tests;
