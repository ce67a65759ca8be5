//! `GET /metrics`, on whichever port.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use skein_node::metrics::Format;

use crate::metrics::Metrics;

/// Handler of `GET /metrics`.
pub(super) async fn scrape(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> impl IntoResponse {
    let format = Format::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    ([(CONTENT_TYPE, format.content_type())], metrics.encode(format))
}
