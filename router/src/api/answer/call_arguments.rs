//! Arguments of a call for APIs whose calls carry an object and not its text.

use serde_json::{Map, Value, json};

/// Arguments of a call.
pub enum Arguments {
    /// The object that the model wrote.
    Object(Map<String, Value>),
    /// The model wrote no object, or not the whole of it. The text is its call, to be shown as content: a
    /// tool must not run with arguments that nobody wrote.
    Text(String),
}

impl Arguments {
    /// Reads what the model wrote as the arguments of `name`. Nothing at all means none, unless the answer
    /// `is_cut` at its length.
    pub fn of(name: &str, written: &str, is_cut: bool) -> Self {
        match serde_json::from_str(written) {
            Ok(object) => Self::Object(object),
            Err(_) if !is_cut && written.trim().is_empty() => Self::Object(Map::new()),
            Err(_) => Self::Text(format!("{{\"name\": {}, \"arguments\": {written}}}", json!(name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_gets_what_the_model_wrote_or_is_not_called() {
        let of = |written, is_cut| match Arguments::of("f", written, is_cut) {
            Arguments::Object(object) => Value::Object(object).to_string(),
            Arguments::Text(text) => text,
        };
        assert_eq!(of("{\"a\": 1}", false), "{\"a\":1}");
        assert_eq!([of("", false), of(" ", false)], ["{}", "{}"]);
        assert_eq!(of("", true), "{\"name\": \"f\", \"arguments\": }");
        for almost in
            ["{\"a\": True}", "{\"a\": None}", "{\"a\": 1,}", "{\"a\": 007}", "{a: 1}", "[1]", "{\"a\": [1"]
        {
            assert_eq!(of(almost, false), format!("{{\"name\": \"f\", \"arguments\": {almost}}}"));
        }
    }
}
