//! Load over HTTP, for `skein bench serve`: sends the sessions of a workload in a closed loop (fixed
//! concurrency) or an open loop (at times independent of the server), and collects the results.
//!
//! An open loop also reports latency from the *intended* send time: a client that falls behind must not make
//! a slow server look fast (coordinated omission).

pub mod arrivals;
pub mod client;
pub mod detail;
mod held_back;
pub mod metrics;
mod pace;
pub mod report;
mod run;
mod session;
pub mod sse;
pub mod texts;
pub mod watch;
pub mod workload;

pub use pace::{HeldBack, Pace};
pub use run::run;

#[cfg(test)]
mod tests;
