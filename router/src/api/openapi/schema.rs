//! A body's schema, from the fields that its reader takes.

use serde_json::{Map, Value, json};
use skein_choice::limits::ModelLimits;
use skein_proto::sampling::Range;

use super::operation::Reader;
use super::words;
use crate::api::fields::listing::{Kind, Listed, Lister, Listing};
use crate::api::fields::object::Fields;
use crate::app::App;
use crate::validate::bounds::{self, Bound};

/// What bounds the fields: the server and its model, as they are now.
pub struct Now<'a> {
    /// The server.
    pub app: &'a App,
    /// The model's limits; `None` while no worker is ready.
    pub model: Option<ModelLimits>,
    /// Names that the caller may use for the model.
    pub names: Vec<String>,
}

/// Schema of the body that `reader` reads; `name` is its component's.
pub fn of(name: &str, reader: Reader, now: &Now<'_>) -> Value {
    let lister = Lister::default();
    reader(Fields::listed(lister.clone()), now.app);
    let Listing { fields, required, .. } = lister.into_listing();
    let mut properties = Map::new();
    for field in &fields {
        let schema = described(name, field, required.contains(&field.name), now);
        let place = match field.within {
            None => &mut properties,
            Some(member) => match members(&mut properties, member) {
                Some(members) => members,
                None => continue,
            },
        };
        place.insert(field.name.to_owned(), schema);
    }
    // These take one of the two, and a reader misses the messages when there is neither. A pair's texts have
    // other names.
    let choice = match name {
        "TokenizeRequest" => Some("prompt"),
        "EmbeddingRequest" => Some("input"),
        _ => None,
    };
    let mut schema = json!({"type": "object", "properties": properties});
    if let Some(text) = choice {
        schema["anyOf"] = json!([{"required": [text]}, {"required": ["messages"]}]);
    } else if !required.is_empty() && name != "ScoreRequest" {
        schema["required"] = required.into();
    }
    if now.app.config.refuse_unknown_fields {
        schema["additionalProperties"] = false.into();
    }
    schema
}

fn members<'a>(properties: &'a mut Map<String, Value>, member: &str) -> Option<&'a mut Map<String, Value>> {
    let object = properties.get_mut(member)?.as_object_mut()?;
    object.entry("properties").or_insert_with(|| json!({})).as_object_mut()
}

fn described(body: &str, field: &Listed, is_required: bool, now: &Now<'_>) -> Value {
    let bound = bounds::of(field.read_as, &now.app.config.limits, now.model.as_ref());
    let bound = match (body, field.name, bound) {
        // 0 scores a prompt that is echoed.
        ("CompletionRequest", "max_tokens", Some(Bound::Whole { high, .. })) => {
            Some(Bound::Whole { low: 0, high })
        }
        // Ollama has empty ones dropped.
        ("OllamaChatRequest" | "OllamaGenerateRequest", "stop", _) => None,
        (.., bound) => bound,
    };
    let mut schema = typed(field.kind, bound, is_required);
    if field.name == "model" && field.kind == Kind::Text && !body.starts_with("Ollama") {
        schema = named(&now.names);
    }
    let about = words::about(body, field.name);
    let about = if field.kind == Kind::WithoutEffect { "Accepted without effect." } else { about };
    if let Some(object) = schema.as_object_mut().filter(|_| !about.is_empty()) {
        object.insert("description".to_owned(), about.into());
    }
    schema
}

/// One of the served names; without one it is the model.
fn named(names: &[String]) -> Value {
    let names = names.iter().map(|name| Value::from(name.as_str())).chain([Value::Null]);
    json!({"enum": names.collect::<Vec<_>>()})
}

fn typed(kind: Kind, bound: Option<Bound>, is_required: bool) -> Value {
    // Null counts as absent.
    let or_null = |name: &str| if is_required { json!(name) } else { json!([name, "null"]) };
    match kind {
        Kind::Any | Kind::WithoutEffect => json!({}),
        Kind::Boolean => json!({"type": or_null("boolean")}),
        Kind::Object => json!({"type": or_null("object")}),
        Kind::Number => number(or_null("number"), bound),
        Kind::Integer => integer(or_null("integer"), bound),
        Kind::Text => text(or_null("string"), bound),
        Kind::Texts => texts(bound),
        Kind::Integers => integers(or_null("array"), bound),
        Kind::Shaped(shape) => {
            let mut schema = reference(shape);
            if let Some(Bound::Members(most)) = bound {
                schema["maxProperties"] = most.into();
            }
            schema
        }
        Kind::ListOf(shape) => {
            let mut schema = json!({"type": or_null("array"), "items": reference(shape)});
            if let Some(Bound::Items(most)) = bound {
                schema["maxItems"] = most.into();
            }
            schema
        }
    }
}

/// Reference to the component `name`.
pub fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn number(kind: Value, bound: Option<Bound>) -> Value {
    let mut schema = json!({"type": kind});
    if let Some(Bound::Number(Range { low, high, above_low, .. })) = bound {
        schema[if above_low { "exclusiveMinimum" } else { "minimum" }] = low.into();
        schema["maximum"] = high.into();
    }
    schema
}

fn integer(kind: Value, bound: Option<Bound>) -> Value {
    let mut schema = json!({"type": kind});
    match bound {
        Some(Bound::Whole { low, high }) => {
            schema["minimum"] = low.into();
            if let Some(high) = high {
                schema["maximum"] = high.into();
            }
        }
        _ => schema["format"] = "int64".into(),
    }
    schema
}

fn text(kind: Value, bound: Option<Bound>) -> Value {
    let mut schema = json!({"type": kind});
    match bound {
        // Bytes are bounded; there are no more characters than bytes.
        Some(Bound::Bytes(most)) => schema["maxLength"] = most.into(),
        Some(Bound::Id(most)) => schema["pattern"] = format!("^[!-~]{{1,{most}}}$").into(),
        Some(Bound::Words(words)) => {
            let words = words.iter().map(|word| Value::from(*word)).chain([Value::Null]);
            schema = json!({"enum": words.collect::<Vec<_>>()});
        }
        _ => {}
    }
    schema
}

fn texts(bound: Option<Bound>) -> Value {
    let mut one = json!({"type": "string"});
    let mut list = json!({"type": "array"});
    if let Some(Bound::Texts { most, bytes }) = bound {
        one["minLength"] = 1.into();
        one["maxLength"] = bytes.into();
        list["maxItems"] = most.into();
    }
    list["items"] = one.clone();
    json!({"anyOf": [one, list, {"type": "null"}]})
}

fn integers(kind: Value, bound: Option<Bound>) -> Value {
    let mut schema = json!({"type": kind, "items": {"type": "integer"}});
    if let Some(Bound::Tokens { least, most, vocab_size }) = bound {
        schema["minItems"] = least.into();
        schema["maxItems"] = most.into();
        schema["items"]["minimum"] = 0.into();
        if let Some(vocab_size) = vocab_size {
            schema["items"]["maximum"] = vocab_size.saturating_sub(1).into();
        }
    }
    schema
}
