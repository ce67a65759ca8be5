//! Anthropic's form of errors.

use serde_json::{Value, json};

use crate::api::http::error::{ApiError, ErrorForm};
use crate::refusal::Refusal;

/// Anthropic's form.
pub enum Anthropic {}

/// A refusal in Anthropic's form.
pub type AnthropicError = ApiError<Anthropic>;

impl ErrorForm for Anthropic {
    fn body(refusal: &Refusal) -> Value {
        error_object(refusal)
    }
}

/// Anthropic's error object, for a response body or an event.
pub fn error_object(refusal: &Refusal) -> Value {
    let kind = match refusal.http().status {
        401 => "authentication_error",
        403 => "permission_error",
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
