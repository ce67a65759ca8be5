//! Grammar of a call in Python's syntax. Values are JSON, or as Python prints them where the schema says only
//! a type, because models learn either form.

use serde_json::Value;

use super::formed::{Formed, keywords};
use super::lark::quoted;

/// Deepest nesting of lists that may be as Python prints them.
const MAX_DEPTH: usize = 4;

/// A string in single quotes, without escapes.
const SINGLE_QUOTED: &str = "/'[^'\\\\\\x00-\\x1f]*'/";

/// Keywords that limit nothing but the type.
const HARMLESS: [&str; 7] = ["type", "items", "enum", "title", "description", "default", "examples"];

/// `f(a=1, b="x")`.
pub fn pythonic_call(formed: &Formed<'_>) -> String {
    let function = formed.function;
    let value = |schema: &Value| {
        let any = |_| formed.any_argument();
        let json = formed.argument(schema).or_else(any).unwrap_or_else(|_| "%json {}".to_owned());
        printed(schema, 0).map_or(json.clone(), |printed| format!("({json} | {printed})"))
    };
    let properties = function.properties().into_iter().flatten();
    let members: Vec<(&str, bool, String)> =
        properties.map(|(key, schema)| (key.as_str(), function.requires(key), value(schema))).collect();
    format!("{} {} \")\"", quoted(&format!("{}(", function.name)), keywords(&members, "=", ", "))
}

/// Values under `schema` whose form in Python is not JSON; `None` if there are none or `schema` limits them.
fn printed(schema: &Value, depth: usize) -> Option<String> {
    let is_harmless = |key: &String| HARMLESS.contains(&key.as_str());
    if depth > MAX_DEPTH || !schema.as_object()?.keys().all(is_harmless) {
        return None;
    }
    if let Some(values) = schema.get("enum") {
        let is_plain = |text: &&str| !text.chars().any(|c| c == '\'' || c == '\\' || c.is_control());
        let single = |value: &Value| Some(quoted(&format!("'{}'", value.as_str().filter(is_plain)?)));
        let values: Option<Vec<String>> = values.as_array()?.iter().map(single).collect();
        return values.filter(|values| !values.is_empty()).map(|values| format!("({})", values.join(" | ")));
    }
    match schema["type"].as_str()? {
        "string" => Some(SINGLE_QUOTED.to_owned()),
        "boolean" => Some("(\"True\" | \"False\")".to_owned()),
        "array" => {
            let item = printed(&schema["items"], depth + 1)?;
            Some(format!("(\"[\" {item} (\", \" {item})* \"]\")"))
        }
        _ => None,
    }
}
