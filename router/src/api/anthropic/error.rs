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
    json!({"type": "error", "error": {"type": kind, "message": message(refusal)}})
}

/// Clients read Anthropic's sentences. After that of a prompt that is too long they shorten the conversation;
/// after that of an answer that does not fit, they repeat the request with the tokens that are left:
/// claude-code 2.1.332 asks every model that it does not know for 32,000.
fn message(refusal: &Refusal) -> String {
    match refusal {
        Refusal::OutputLength { max, prompt, output, .. } => format!(
            "input length and `max_tokens` exceed context limit: {prompt} + {output} > {max}, decrease input length or \
             `max_tokens` and try again; the prompt leaves {} tokens.",
            max.saturating_sub(*prompt)
        ),
        Refusal::ContextLength { max, prompt, .. } if prompt >= max => {
            format!("prompt is too long: {prompt} tokens > {max} maximum; shorten the conversation.")
        }
        Refusal::PromptTooLong(long) => {
            format!(
                "prompt is too long: {} bytes, far more than {} tokens maximum; shorten the conversation.",
                long.bytes, long.max
            )
        }
        refusal => refusal.to_string(),
    }
}
