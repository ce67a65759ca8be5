//! Reads queries and documents: a text, an object with a `text`, or a list of either.

use std::sync::Arc;

use serde_json::Value;

use crate::api::fields::listing::Kind;
use crate::api::fields::object::{Fields, wrong};
use crate::pooled::draft::MAX_INPUTS;
use crate::refusal::Refusal;

const EXPECTED: &str = "a string, an object with a string `text`, or a list of these";

/// Takes the field `name`, which holds 1 to [`MAX_INPUTS`] texts.
pub fn take(fields: &mut Fields, name: &'static str) -> Vec<Arc<str>> {
    let texts = match fields.take(name, Kind::Shaped("ScoredTexts")) {
        None => Err(Refusal::invalid(name, format!("{name} is required: {EXPECTED}."))),
        Some(Value::Array(items)) if items.is_empty() => {
            Err(Refusal::invalid(name, format!("{name} must not be an empty list.")))
        }
        Some(Value::Array(items)) if items.len() > MAX_INPUTS => {
            let message = format!(
                "{name} takes at most {MAX_INPUTS} texts, got {}; send several requests.",
                items.len()
            );
            Err(Refusal::invalid(name, message))
        }
        Some(Value::Array(items)) => items.into_iter().map(|item| text(name, item)).collect(),
        Some(one) => text(name, one).map(|one| vec![one]),
    };
    fields.value_of(texts)
}

fn text(name: &'static str, value: Value) -> Result<Arc<str>, Refusal> {
    match value {
        Value::String(text) => Ok(text.into()),
        Value::Object(mut object) => match object.shift_remove("text") {
            Some(Value::String(text)) => Ok(text.into()),
            other => {
                let got = other.unwrap_or(Value::Object(object));
                Err(wrong(name, EXPECTED, &got))
            }
        },
        other => Err(wrong(name, EXPECTED, &other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(value: Value) -> Result<Vec<Arc<str>>, String> {
        let mut fields = Fields::parse(json!({"documents": value}).to_string().as_bytes()).unwrap();
        let texts = take(&mut fields, "documents");
        fields.finish(false).map(|_| texts).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn texts_come_in_the_shapes_of_all_clients() {
        assert_eq!(taken(json!("a")).unwrap(), [Arc::from("a")]);
        assert_eq!(taken(json!({"text": "a", "id": 7})).unwrap(), [Arc::from("a")]);
        assert_eq!(taken(json!(["a", {"text": "b"}])).unwrap(), [Arc::from("a"), Arc::from("b")]);
        assert!(taken(json!([])).unwrap_err().contains("empty list"));
        assert!(taken(json!([1])).unwrap_err().contains("documents must be a string, an object"));
        assert!(taken(json!([{"title": "a"}])).is_err());
        assert!(
            taken(json!(vec!["a"; MAX_INPUTS + 1])).unwrap_err().contains("at most 2048 texts, got 2049")
        );
        assert_eq!(taken(json!(vec!["a"; MAX_INPUTS])).unwrap().len(), MAX_INPUTS);
    }
}
