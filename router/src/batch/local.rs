//! Sends requests to a router in this process through its HTTP handlers.

use axum::Router;
use axum::body::{Body, to_bytes};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Request};
use serde_json::Value;
use tower::ServiceExt;

use super::{Answer, Answerer, Call};
use crate::api;
use crate::app::App;

/// Largest answer, in bytes: enough for 128 samples with log-probabilities.
pub const MAX_ANSWER_BYTES: usize = 1 << 30;

/// HTTP handlers of a router in this process.
#[derive(Debug)]
pub struct Local(Router);

impl Local {
    /// Handlers of `app`.
    pub fn new(app: App) -> Self {
        Self(api::router(app, Router::new(), Router::new()))
    }
}

impl Answerer for Local {
    fn answer<'a>(&'a self, call: &'a Call, key: &'a str) -> BoxFuture<'a, Result<Answer, String>> {
        send(&self.0, call, key).boxed()
    }
}

/// Sends `call` to `routes` under the idempotency key `key`.
pub(super) async fn send(routes: &Router, call: &Call, key: &str) -> Result<Answer, String> {
    let request = Request::post(call.endpoint.path())
        .header(CONTENT_TYPE, "application/json")
        .header("x-request-id", key);
    let request = if call.names_itself() { request } else { request.header("idempotency-key", key) };
    let request = request.body(Body::from(call.body.to_string())).map_err(|error| error.to_string())?;
    let response = routes.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
    let (head, body) = response.into_parts();
    let body = to_bytes(body, MAX_ANSWER_BYTES).await.map_err(|error| error.to_string())?;
    Ok(answer(head.status.as_u16(), &head.headers, &body))
}

/// Builds an answer from its parts.
pub fn answer(status: u16, headers: &HeaderMap, body: &[u8]) -> Answer {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let seconds = text(RETRY_AFTER.as_str()).and_then(|value| value.trim().parse().ok());
    let body = serde_json::from_slice(body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()));
    Answer {
        status,
        request_id: text("x-request-id").unwrap_or_default().to_owned(),
        retry_after: seconds.map(std::time::Duration::from_secs),
        body,
    }
}
