//! `metadata`: what a client wants to find with a batch or a response again.

use serde_json::{Map, Value};

use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::refusal::Refusal;

/// Most entries in `metadata`; OpenAI's limit.
const MAX_METADATA: usize = 16;
/// Longest key and longest value in `metadata`, in characters; OpenAI's limits.
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 512;
/// Takes the field; empty if it is absent or wrong.
pub fn metadata(fields: &mut Fields) -> Map<String, Value> {
    match fields.take("metadata", Kind::Shaped("Metadata")) {
        None => Map::new(),
        Some(Value::Object(metadata)) if metadata.len() <= MAX_METADATA && metadata.iter().all(is_short) => {
            metadata
        }
        Some(_) => {
            let message = format!(
                "metadata must be an object of at most {MAX_METADATA} strings of up to {MAX_VALUE} characters, under keys \
                 of up to {MAX_KEY}."
            );
            fields.note(Refusal::invalid("metadata", message));
            Map::new()
        }
    }
}

fn is_short((key, value): (&String, &Value)) -> bool {
    key.chars().count() <= MAX_KEY && value.as_str().is_some_and(|value| value.chars().count() <= MAX_VALUE)
}
