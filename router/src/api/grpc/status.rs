//! Refusals as gRPC statuses.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tonic::metadata::MetadataValue;

use crate::api::openai::error::OpenAiError;
use crate::refusal::Refusal;

/// A refusal as a gRPC status, with `retry-after-ms` in the metadata if retrying helps.
pub fn status(refusal: &Refusal) -> tonic::Status {
    let mut status = tonic::Status::new(refusal.grpc_code(), refusal.to_string());
    if let Some(after) = refusal.retry_after() {
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
        status.metadata_mut().insert("retry-after-ms", MetadataValue::from(ms));
    }
    status
}

/// Answers a request that no service sees. gRPC shares its port with HTTP, so a request says in its content
/// type whether it is gRPC; any other gets OpenAI's form.
pub fn refuse(request: &Request, refusal: Refusal) -> Response {
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if content_type.starts_with(b"application/grpc") {
        status(&refusal).into_http::<axum::body::Body>().into_response()
    } else {
        OpenAiError::refuse(request, refusal)
    }
}
