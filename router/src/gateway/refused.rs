//! Turns a refusal into a response: OpenAI's error object with the retry headers that SDKs read, or a gRPC
//! status if the request was gRPC.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::refusal::Refusal;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A refusal, and the protocol in which the client expects it.
#[derive(Debug)]
pub struct Refused {
    refusal: Refusal,
    grpc: bool,
}

impl Refused {
    /// Takes the protocol from the request's `headers`.
    pub fn new(headers: &HeaderMap, refusal: Refusal) -> Self {
        let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        Self { refusal, grpc: content_type.starts_with(b"application/grpc") }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, grpc: false }
    }
}

/// OpenAI's error object, for a body or a chunk.
pub fn error_object(refusal: &Refusal) -> Value {
    let shape = refusal.http();
    json!({"error": {
        "message": refusal.to_string(), "type": shape.kind, "param": refusal.param(), "code": shape.code,
    }})
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        if self.grpc {
            return crate::grpc::status(&self.refusal).into_http::<axum::body::Body>().into_response();
        }
        let status =
            StatusCode::from_u16(self.refusal.http().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, headers(&self.refusal), Json(error_object(&self.refusal))).into_response()
    }
}

/// The headers of a refusal over HTTP, besides those of the body.
pub fn headers(refusal: &Refusal) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let retry_after = refusal.retry_after();
    headers
        .insert(SHOULD_RETRY, HeaderValue::from_static(if retry_after.is_some() { "true" } else { "false" }));
    if let Some(after) = retry_after {
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(ms));
        headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
    }
    if matches!(refusal, Refusal::CompressedBody(_)) {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    if matches!(refusal, Refusal::Unauthorized) {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers
}
