//! Responses that this process writes itself.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde_json::Value;
use skein_router::api::http::error::headers;
use skein_router::api::openai::error::error_object;
use skein_router::refusal::Refusal;

use super::body::AnswerBody;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A refusal as a response.
pub(super) fn refused(refusal: &Refusal) -> Response<AnswerBody> {
    let status = StatusCode::from_u16(refusal.http().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_body(status, &error_object(refusal));
    response.headers_mut().extend(headers(refusal));
    response
}

/// A JSON object as a response.
pub(super) fn json_body(status: StatusCode, value: &Value) -> Response<AnswerBody> {
    whole(status, JSON, value.to_string())
}

/// A whole response of this content type.
pub(super) fn whole(status: StatusCode, kind: HeaderValue, text: String) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
