//! Pieces of Lark's notation.

use serde_json::Value;

/// `text` as a literal.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
