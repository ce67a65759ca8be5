//! The router of a Skein cluster.
//!
//! `gateway` (OpenAI HTTP) and `grpc` (skein.v1, KServe v2) parse requests and send answers; both hand a
//! [`request::Draft`] to the one validator. `text` converts it to tokens and tokens back to text. `fleet` is
//! the live state of the workers and chooses among them, purely; `links` connect to them. `dispatch` opens a
//! stream on one of them and resumes it on another if that worker is lost. `metrics` counts and times
//! requests. `upstream` is another front, without text: it passes requests on to servers that speak the
//! OpenAI API or KServe v2. `tensors` reads and writes the tensors of KServe v2. This crate does not use the
//! worker's code.

pub mod admission;
pub mod app;
pub mod batch;
pub mod capacity;
pub(crate) mod claims;
pub mod cluster;
pub mod config;
pub mod dispatch;
pub mod drain;
pub mod fleet;
pub mod formats;
pub mod gateway;
pub mod generator;
pub mod grpc;
pub mod links;
pub mod metrics;
pub mod picks;
pub mod receipt;
pub mod refusal;
pub mod request;
pub mod serve;
pub mod stream_key;
pub mod swap;
pub mod tenant;
pub(crate) mod tensors;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod text_work;
pub mod upstream;
pub mod validate;
