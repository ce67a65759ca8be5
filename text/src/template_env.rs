//! The Jinja environment, set up like Hugging Face's: block trimming, loop controls, Python's methods,
//! `tojson`, `raise_exception` and `strftime_now`; and with limits, which Hugging Face's lacks.

use std::fmt;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::jinja;
use super::strftime::{MAX_WIDTH, strftime};

/// Most instructions of one rendering. Long conversations take some hundred thousand.
const FUEL: u64 = 5_000_000;
/// Most nested calls, loops and macros; well within a thread's stack.
const RECURSION: usize = 160;
/// Prefix of messages from `raise_exception`, which the template addresses to the client.
pub const RAISED: &str = "raised by the template: ";

/// An environment without templates. `clock` returns the time since 1970.
pub fn environment(clock: fn() -> Duration) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    // Otherwise errors of a debug build would carry every variable, however large.
    env.set_debug(false);
    jinja::install(&mut env);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    env.add_function("strftime_now", move |format: String| {
        jinja::limits::check_bytes(format.matches('%').count().saturating_mul(MAX_WIDTH))?;
        Ok::<_, Error>(strftime(&format, clock()))
    });
    Ok(env)
}

/// Converts JSON to a template variable.
pub fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (_, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<_>>()),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_value(value))))
        }
    }
}

/// A template variable read from JSON, as [`to_value`] converts it, without the tree between.
#[derive(Debug)]
pub struct FromJson(pub Value);

impl<'de> Deserialize<'de> for FromJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or_else(|_| Value::from(value), Value::from))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(FromJson(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::from(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all: Vec<(String, Value)> = Vec::new();
        while let Some((name, FromJson(value))) = fields.next_entry()? {
            all.push((name, value));
        }
        Ok(Value::from_pairs(all))
    }
}

#[cfg(test)]
mod tests {
    use minijinja::value::ValueKind;
    use serde_json::json;

    use super::*;

    /// A value with the kind of each part.
    fn shown(value: &Value) -> String {
        match value.kind() {
            ValueKind::Seq => {
                value.try_iter().unwrap().map(|item| shown(&item)).collect::<Vec<_>>().join(", ")
            }
            ValueKind::Map => {
                let field = |name: Value| format!("{name:?}: {}", shown(&value.get_item(&name).unwrap()));
                value.try_iter().unwrap().map(field).collect::<Vec<_>>().join("; ")
            }
            kind => format!("{kind:?} {value:?} {}", value.is_integer()),
        }
    }

    #[test]
    fn json_is_read_as_it_is_converted() {
        let text = "long enough to be on the heap ".repeat(9);
        for json in [
            json!([{"role": "user", "content": text, "z": null, "a": [true, false, [], {}]}, {"b": {"y": 1, "x": ""}}]),
            json!([0, -1, 7, i64::MIN, i64::MAX, u64::MAX, 0.5, -0.0, 1e300, 3.0]),
            json!("é\u{301}\n\"\\"),
            json!({"nested": {"deeply": [[[[{"c": "é"}]]]]}}),
        ] {
            let FromJson(read) = serde_json::from_str(&json.to_string()).unwrap();
            assert_eq!(shown(&read), shown(&to_value(&json)), "{json}");
            assert_eq!(read, to_value(&json), "{json}");
        }
    }
}
