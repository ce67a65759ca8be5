//! What all APIs over HTTP share: keys, cross-origin requests, request ids, receipts, spans, metrics,
//! server-sent events and entity tags.

pub(crate) mod around;
pub mod body;
pub mod cors;
pub mod error;
pub(crate) mod face;
pub mod keys;
pub(crate) mod metrics;
pub mod nodes;
mod origin;
pub(crate) mod pace;
pub(crate) mod query;
pub mod rate_limits;
pub mod receipts;
pub(crate) mod request_id;
pub(crate) mod span;
pub(crate) mod sse;
pub(crate) mod tagged;
