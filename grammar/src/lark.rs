//! Helpers for Lark's notation.

use serde_json::Value;

/// Quotes `text` as a literal.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
