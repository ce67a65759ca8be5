//! What a rendering process is asked for.

use serde_json::{Map, Value};

/// Request to a rendering process.
#[derive(Debug)]
pub struct Rendering<'a> {
    /// Messages of the conversation, in the template's form.
    pub messages: &'a Value,
    /// Whether to open the assistant's turn.
    pub add_generation_prompt: bool,
    /// Extra template variables of the request.
    pub arguments: &'a Map<String, Value>,
    /// Scope in which a process keeps the messages; `None` = it does not.
    pub kept_in: Option<&'a str>,
}
