//! What all APIs over HTTP share: keys, cross-origin requests, request ids, receipts, spans, metrics and
//! server-sent events.

pub mod body;
pub mod cors;
pub mod error;
pub mod face;
pub mod keys;
pub mod metrics;
pub mod receipts;
pub mod request_id;
pub mod span;
pub mod sse;
