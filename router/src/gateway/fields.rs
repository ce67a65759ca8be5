//! A JSON body, read field by field. Each field is taken once, with the type the API documents; an error
//! names the field. Unknown fields are listed, not refused.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};

use crate::app::App;
use crate::refusal::Refusal;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// A larger body is parsed off the async threads, so that it delays no stream.
const INLINE_BODY_BYTES: usize = 128 * 1024;
/// Most unknown fields that the answer's header lists.
const MAX_IGNORED: usize = 32;

/// The fields of a body that have not been taken yet.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads the body of `request`, within the bounds of `app`.
    pub async fn read(request: Request, app: &App) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        check_content_type(&parts.headers)?;
        let body = read_body(body, app.config.limits.body_bytes).await?;
        if body.len() <= INLINE_BODY_BYTES {
            return Self::parse(&body);
        }
        // Parsed, a list of numbers takes some forty times its bytes.
        app.text_work(body.len(), move || Self::parse(&body)).await
    }

    /// Parses a JSON object. serde_json limits the depth to 128.
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        if let Err(error) = std::str::from_utf8(body) {
            let at = error.valid_up_to();
            return Err(Refusal::InvalidJson(format!(
                "The body is not valid UTF-8; the first bad byte is byte {at}."
            )));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(other) => {
                Err(Refusal::InvalidJson(format!("The body must be a JSON object, got {}.", kind(&other))))
            }
            Err(error) => {
                // serde_json names the problem and its place, and quotes at most expected field names.
                let message: String = error.to_string().chars().take(200).collect();
                Err(Refusal::InvalidJson(format!("The body is not valid JSON: {message}.")))
            }
        }
    }

    /// Takes a field; null counts as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a number; `None` if absent.
    pub fn f64(&mut self, name: &'static str) -> Result<Option<f64>, Refusal> {
        self.take(name).map(|value| value.as_f64().ok_or_else(|| wrong(name, "a number", &value))).transpose()
    }

    /// Takes an integer; `None` if absent.
    pub fn i64(&mut self, name: &'static str) -> Result<Option<i64>, Refusal> {
        self.take(name)
            .map(|value| whole(&value).ok_or_else(|| wrong(name, "a 64-bit integer", &value)))
            .transpose()
    }

    /// Takes a boolean; absent is false.
    pub fn bool(&mut self, name: &'static str) -> Result<bool, Refusal> {
        Ok(self.optional_bool(name)?.unwrap_or(false))
    }

    /// Takes a boolean; `None` if absent.
    pub fn optional_bool(&mut self, name: &'static str) -> Result<Option<bool>, Refusal> {
        self.take(name)
            .map(|value| value.as_bool().ok_or_else(|| wrong(name, "true or false", &value)))
            .transpose()
    }

    /// Takes a string; `None` if absent.
    pub fn string(&mut self, name: &'static str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    /// Takes a string or a list of strings; empty if absent.
    pub fn strings(&mut self, name: &'static str) -> Result<Vec<String>, Refusal> {
        let text = |value| match value {
            Value::String(text) => Ok(text),
            other => Err(wrong(name, "a string or a list of strings", &other)),
        };
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => items.into_iter().map(text).collect(),
            Some(other) => Ok(vec![text(other)?]),
        }
    }

    /// Takes a list of integers; `None` if absent.
    pub fn integers(&mut self, name: &'static str) -> Result<Option<Vec<i64>>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => integers(name, &items).map(Some),
            Some(other) => Err(wrong(name, "a list of integers", &other)),
        }
    }

    /// Takes an object; `None` if absent.
    pub fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    /// Takes a field that would change the answer and is not supported; values that are `harmless` pass.
    pub fn unsupported(&mut self, name: &'static str, harmless: fn(&Value) -> bool) -> Result<(), Refusal> {
        match self.take(name) {
            Some(value) if !harmless(&value) => {
                Err(Refusal::invalid(name, format!("{name} is not supported yet; leave it out.")))
            }
            _ => Ok(()),
        }
    }

    /// The names of the fields that were not taken, as a header value.
    pub fn ignored(self) -> Option<HeaderValue> {
        let printable = |name: &String| {
            !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_graphic())
        };
        let names: Vec<String> =
            self.0.into_iter().map(|(name, _)| name).filter(printable).take(MAX_IGNORED).collect();
        if names.is_empty() { None } else { HeaderValue::from_str(&names.join(", ")).ok() }
    }
}

/// The refusal of a value of the wrong type. It does not repeat the value.
pub fn wrong(name: &'static str, expected: &str, got: &Value) -> Refusal {
    Refusal::invalid(name, format!("{name} must be {expected}, got {}.", kind(got)))
}

/// Checks that every item is an integer.
pub fn integers(name: &'static str, items: &[Value]) -> Result<Vec<i64>, Refusal> {
    items.iter().map(|item| whole(item).ok_or_else(|| wrong(name, "a list of integers", item))).collect()
}

/// 16 and 16.0 are integers; 1e30 and 0.5 are not.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        // Below 2^53 a float holds the written integer exactly.
        value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && number.abs() < 9e15)
            .map(|number| number as i64)
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fractional number",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let value = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    let kind = value.split(';').next().unwrap_or_default().trim();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    // Escape before cutting: 100 characters of escaped text are 100 bytes, so the answer cannot outgrow the
    // header.
    Err(Refusal::UnsupportedMediaType(kind.escape_default().take(100).collect()))
}

async fn read_body(body: Body, limit: usize) -> Result<bytes::Bytes, Refusal> {
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, limit).collect());
    match collected.await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(Refusal::TooLarge { limit })
        }
        Ok(Err(_)) => Err(Refusal::InvalidJson("The body ended early.".to_owned())),
        Err(_) => {
            let seconds = BODY_TIMEOUT.as_secs();
            Err(Refusal::InvalidJson(format!("The body did not arrive within {seconds} s.")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_bodies_are_refused_with_the_position() {
        let check = |body: &[u8], expected: &str| {
            let refusal = Fields::parse(body).unwrap_err();
            assert_eq!(refusal.http().code, Some("invalid_json"));
            assert!(refusal.to_string().contains(expected), "{refusal}");
            assert!(refusal.to_string().len() < 300);
        };
        check(b"{\"a\": ", "EOF while parsing a value at line 1 column 6");
        check(b"{\"a\": 1,}", "line 1 column 9");
        check(b"", "line 1 column 0");
        check(b"[1]", "must be a JSON object, got a list");
        check(b"{\"a\": \"\xFF\"}", "the first bad byte is byte 7");
        check(br#"{"a": "\ud800"}"#, "line 1");
        check(br#"{"a": NaN}"#, "line 1");
        check(format!("{{\"a\": {}", "[".repeat(100_000)).as_bytes(), "recursion limit");
    }

    #[test]
    fn wrong_types_name_the_field() {
        let fields = || {
            Fields::parse(br#"{"a": "x", "b": 1.5, "c": [1, "2"], "d": 16.0, "e": 18446744073709551615}"#)
                .unwrap()
        };
        assert_eq!(fields().f64("a").unwrap_err().to_string(), "a must be a number, got a string.");
        assert_eq!(
            fields().i64("b").unwrap_err().to_string(),
            "b must be a 64-bit integer, got a fractional number."
        );
        assert_eq!(
            fields().strings("c").unwrap_err().to_string(),
            "c must be a string or a list of strings, got a number."
        );
        assert_eq!(
            fields().integers("c").unwrap_err().to_string(),
            "c must be a list of integers, got a string."
        );
        assert_eq!(fields().bool("d").unwrap_err().param(), Some("d"));
        assert_eq!(fields().i64("d").unwrap(), Some(16));
        assert!(fields().i64("e").is_err());
    }

    #[test]
    fn unknown_fields_are_listed() {
        let mut fields =
            Fields::parse("{\"a\": 1, \"zig\": 2, \"n\": null, \"é\\n\": 3}".as_bytes()).unwrap();
        assert_eq!(fields.i64("a").unwrap(), Some(1));
        assert_eq!(fields.i64("n").unwrap(), None);
        assert_eq!(fields.ignored().unwrap(), "zig");
    }
}
