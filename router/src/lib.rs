//! The router of a Skein cluster.
//!
//! `api` has a room for each API that clients speak; each parses requests into a [`request::Draft`] and
//! writes answers. `validate` is the one validator of drafts. The crate `skein_text` converts them to tokens,
//! `text` streams tokens back as text. `admission` bounds what runs at once, the crate `skein_choice` chooses
//! among the workers, purely; `links` connect to them. `dispatch` opens a stream on one of them and resumes
//! it on another if that worker is lost; `cluster` ties these together behind the traits of `generator`.
//! `batch` runs files of requests, `stored` keeps answers that clients come back to. `tenants` holds the keys
//! of a file and what each may do. `metrics` counts and times requests. This crate does not use the worker's
//! code, nor does it know the crate `skein_front`, which borrows what all HTTP shares.

pub mod admission;
pub mod api;
pub mod app;
pub mod batch;
pub mod cluster;
pub mod config;
mod connection;
pub mod dispatch;
pub mod drain;
mod first_bytes;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod generator;
mod give_back;
mod idle;
pub mod ids;
pub mod limits;
pub mod links;
pub mod metrics;
pub mod metrics_port;
pub mod pause;
mod pooled;
pub mod refusal;
pub mod repository;
pub mod request;
mod request_lines;
pub mod serve;
pub mod shard;
pub mod shards;
pub mod stored;
pub mod swap;
pub mod tenants;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod testing;
pub mod text;
pub mod unread;
pub mod validate;
