//! Delivers one request: opens a stream at a worker and, on any fault, resumes it at another.
//!
//! [`delivery`] makes all decisions, purely: what the client has, what to drop, when to move. `driver` holds
//! the stream and executes the decisions, `open` opens it, `reader` is the router's end of it, `watch` ends
//! waits that have become pointless, and `attempts` records the spans of the calls.

mod attempts;
pub(crate) mod claims;
pub mod delivery;
pub(crate) mod driver;
mod open;
mod reader;
mod watch;

pub(crate) use watch::until;

#[cfg(test)]
mod tests;
