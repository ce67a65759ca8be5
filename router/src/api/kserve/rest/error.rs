//! KServe's form of errors: only the message.

use serde_json::{Value, json};

use crate::api::http::error::{ApiError, ErrorForm};
use crate::refusal::Refusal;

/// KServe's form.
pub enum Kserve {}

/// A refusal in KServe's form.
pub type KserveError = ApiError<Kserve>;

impl ErrorForm for Kserve {
    fn body(refusal: &Refusal) -> Value {
        json!({"error": refusal.to_string()})
    }
}
