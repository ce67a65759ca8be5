//! The front of a Skein cluster.
//!
//! `gateway` (OpenAI HTTP) and `grpc` (skein.v1) parse and answer; both hand a [`request::Draft`] to the one
//! validator. `text` turns it into tokens and tokens back into text. `admission`, `prefix_index` and `policy`
//! decide, purely. `fleet` is the live picture of the workers, `dispatch` opens a stream on one of them and
//! resumes it elsewhere when that worker is lost. This crate knows nothing of the worker's code.

pub mod admission;
pub mod app;
pub mod breaker;
pub mod capacity;
pub(crate) mod claims;
pub mod cluster;
pub mod config;
pub mod dispatch;
pub mod drain;
pub mod fleet;
pub mod gateway;
pub mod generator;
pub mod grpc;
pub mod ledger;
pub mod policy;
pub mod prefix_index;
pub mod refusal;
pub mod request;
pub mod serve;
pub(crate) mod shared;
pub mod stream_key;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod transport;
pub mod validate;
pub mod worker_client;
