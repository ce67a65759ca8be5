//! OpenAI's form of errors. APIs without a form of their own use it, too.

use serde_json::{Value, json};

use crate::api::http::error::{ApiError, ErrorForm};
use crate::refusal::Refusal;

/// OpenAI's form.
pub enum OpenAi {}

/// A refusal in OpenAI's form.
pub type OpenAiError = ApiError<OpenAi>;

impl ErrorForm for OpenAi {
    fn body(refusal: &Refusal) -> Value {
        error_object(refusal)
    }
}

/// OpenAI's error object, for a response body or a chunk.
pub fn error_object(refusal: &Refusal) -> Value {
    let shape = refusal.http();
    json!({"error": {
        "message": refusal.to_string(), "type": shape.kind, "param": refusal.param(), "code": shape.code,
    }})
}
