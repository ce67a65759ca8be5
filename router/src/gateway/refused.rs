//! Converts a refusal to a response: an error object in the API's format with the retry headers that SDKs
//! read, or a gRPC status.

use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::refusal::Refusal;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A refusal and the protocol of its response.
#[derive(Debug)]
pub struct Refused {
    refusal: Refusal,
    protocol: Protocol,
}

/// Protocols with their own error format.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    OpenAi,
    Ollama,
    Anthropic,
    Grpc,
}

impl Refused {
    /// Response to `request`, in the protocol of its content type or path.
    pub fn to(request: &Request, refusal: Refusal) -> Self {
        let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let protocol = if content_type.starts_with(b"application/grpc") {
            Protocol::Grpc
        } else if request.uri().path().starts_with("/api/") {
            Protocol::Ollama
        } else if ANTHROPIC.iter().any(|path| request.uri().path().ends_with(path)) {
            Protocol::Anthropic
        } else {
            Protocol::OpenAi
        };
        Self { refusal, protocol }
    }

    /// Response to a request of Anthropic's API.
    pub fn anthropic(refusal: Refusal) -> Self {
        Self { refusal, protocol: Protocol::Anthropic }
    }

    /// Response to a request of Ollama's API.
    pub fn ollama(refusal: Refusal) -> Self {
        Self { refusal, protocol: Protocol::Ollama }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, protocol: Protocol::OpenAi }
    }
}

/// OpenAI's error object, for a response body or a chunk.
pub fn error_object(refusal: &Refusal) -> Value {
    let shape = refusal.http();
    json!({"error": {
        "message": refusal.to_string(), "type": shape.kind, "param": refusal.param(), "code": shape.code,
    }})
}

/// Paths of Anthropic's API.
const ANTHROPIC: [&str; 2] = ["/v1/messages", "/v1/messages/count_tokens"];

/// Anthropic's error object, for a response body or an event.
pub fn anthropic_error(refusal: &Refusal) -> Value {
    let kind = match refusal.http().status {
        401 => "authentication_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": refusal.to_string()}})
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = match self.protocol {
            Protocol::OpenAi => error_object(&self.refusal),
            Protocol::Anthropic => anthropic_error(&self.refusal),
            Protocol::Ollama => json!({"error": self.refusal.to_string()}),
            Protocol::Grpc => {
                return crate::grpc::status::status(&self.refusal)
                    .into_http::<axum::body::Body>()
                    .into_response();
            }
        };
        let status =
            StatusCode::from_u16(self.refusal.http().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, headers(&self.refusal), Json(body)).into_response()
    }
}

/// Headers of a refusal over HTTP, besides those of the body.
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
    if matches!(refusal, Refusal::MissingKey | Refusal::Unauthorized) {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers
}
