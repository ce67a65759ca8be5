//! Ollama's form of errors: only the message.

use serde_json::{Value, json};

use crate::api::http::error::{ApiError, ErrorForm};
use crate::refusal::Refusal;

/// Ollama's form.
pub enum Ollama {}

/// A refusal in Ollama's form.
pub type OllamaError = ApiError<Ollama>;

impl ErrorForm for Ollama {
    fn body(refusal: &Refusal) -> Value {
        json!({"error": refusal.to_string()})
    }
}
