//! What a request asks of the stored answers, and its input.

use serde_json::{Value, json};

use crate::api::fields::listing::Kind;
use crate::api::fields::object::{Fields, wrong};
use crate::config::RouterConfig;
use crate::refusal::Refusal;

/// Whether the answer is stored and what it continues. Taken before the other fields, because what it
/// continues is read before they are.
#[derive(Debug, Default)]
pub struct Asked {
    /// Whether the answer is stored.
    pub is_stored: bool,
    /// Id of the answer that this one continues.
    pub previous: Option<String>,
    /// Whether the client comes back for the answer.
    pub is_background: bool,
    /// Items of `input`; empty if it has a fault.
    pub items: Vec<Value>,
}

impl Asked {
    /// Takes the fields; faults are noted.
    pub fn take(fields: &mut Fields, config: &RouterConfig) -> Self {
        let has_store = config.responses.is_some();
        let asked_to_store = fields.optional_bool("store");
        let previous = fields.string("previous_response_id");
        let is_background = fields.bool("background");
        if previous.is_some() && !has_store {
            let message = "previous_response_id: this server stores no responses; send the whole conversation in input, or \
                           start it with --response-store.";
            fields.note(Refusal::invalid("previous_response_id", message));
        }
        let without_background = match () {
            () if !is_background => None,
            () if !has_store => Some("this server stores no responses; start it with --response-store"),
            () if asked_to_store == Some(false) => {
                Some("the response must be stored; leave out store, or set it to true")
            }
            () if config.is_one_of_several => {
                Some("a server of several models answers in the foreground only, as yet; read the stream")
            }
            () => None,
        };
        if let Some(why) = without_background {
            fields.note(Refusal::invalid("background", format!("background is not possible here: {why}.")));
        }
        // OpenAI stores an answer unless the client says otherwise.
        let is_stored = has_store && asked_to_store.unwrap_or(true);
        Self { is_stored, previous, is_background, items: items(fields) }
    }
}

fn items(fields: &mut Fields) -> Vec<Value> {
    match fields.take("input", Kind::Shaped("ResponsesInput")) {
        Some(Value::String(text)) => vec![json!({"role": "user", "content": text})],
        Some(Value::Array(items)) => items,
        Some(other) => {
            fields.note(wrong("input", "a string or a list of items", &other));
            Vec::new()
        }
        None => {
            fields.note(Refusal::invalid("input", "input is required: a string or a list of items."));
            Vec::new()
        }
    }
}
