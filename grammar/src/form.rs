//! How JSON under a schema is written: white space, and properties that the schema does not name.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::limits::MAX_WHITESPACE;

/// The form of JSON that a schema allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JsonForm {
    /// No white space between tokens.
    pub is_compact: bool,
    /// An object that lists properties has no others, unless its schema says which.
    pub is_closed: bool,
}

impl JsonForm {
    /// What both forms allow.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { is_compact: self.is_compact || other.is_compact, is_closed: self.is_closed || other.is_closed }
    }

    /// The library's options.
    pub(crate) fn options(self) -> Value {
        if self.is_compact {
            return json!({"whitespace_flexible": false});
        }
        json!({"whitespace_pattern": format!(r"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}")})
    }
}

/// Keywords whose schemas apply to the same value.
const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that hold schemas of other values, by name.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that hold a schema of other values, or a list of them.
const OTHERS: [&str; 4] = ["items", "prefixItems", "additionalItems", "additionalProperties"];

/// `schema` with `additionalProperties: false` at each object that lists properties and does not say what
/// else it takes. One that is combined with other schemas stays open: it would forbid their properties.
pub(crate) fn closed(schema: &Value) -> Value {
    let mut closing = Closing::default();
    loop {
        let known = closing.combined.len();
        let closed = closing.schema(schema, "", false);
        // A definition that turns out to be combined may itself refer to others.
        if closing.combined.len() == known {
            return closed;
        }
    }
}

#[derive(Default)]
struct Closing {
    /// Pointers to definitions that are combined with other schemas.
    combined: HashSet<String>,
}

impl Closing {
    fn schema(&mut self, schema: &Value, pointer: &str, is_combined: bool) -> Value {
        let Value::Object(fields) = schema else { return schema.clone() };
        let is_combined = is_combined || self.combined.contains(pointer) || parts(fields) > 1;
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str).filter(|_| is_combined) {
            self.combined.extend(reference.strip_prefix('#').map(str::to_owned));
        }
        let inner = |(keyword, value): (&String, &Value)| {
            let at = format!("{pointer}/{keyword}");
            let value = match value {
                Value::Array(items) if IN_PLACE.contains(&keyword.as_str()) => {
                    self.list(items, &at, is_combined)
                }
                Value::Array(items) if OTHERS.contains(&keyword.as_str()) => self.list(items, &at, false),
                Value::Object(named) if NAMED.contains(&keyword.as_str()) => self.named(named, &at),
                value if OTHERS.contains(&keyword.as_str()) => self.schema(value, &at, false),
                value => value.clone(),
            };
            (keyword.clone(), value)
        };
        let mut fields: Map<String, Value> = fields.iter().map(inner).collect();
        if lists_properties(&fields) && !is_combined {
            fields.entry("additionalProperties").or_insert(Value::Bool(false));
        }
        fields.into()
    }

    fn list(&mut self, items: &[Value], pointer: &str, is_combined: bool) -> Value {
        let items = items.iter().enumerate();
        items.map(|(at, item)| self.schema(item, &format!("{pointer}/{at}"), is_combined)).collect()
    }

    fn named(&mut self, named: &Map<String, Value>, pointer: &str) -> Value {
        let one = |(name, inner): (&String, &Value)| {
            let at = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            (name.clone(), self.schema(inner, &at, false))
        };
        Value::Object(named.iter().map(one).collect())
    }
}

fn lists_properties(fields: &Map<String, Value>) -> bool {
    ["properties", "patternProperties"].iter().any(|keyword| fields.contains_key(*keyword))
}

/// Schemas of which an object has to be an instance.
fn parts(fields: &Map<String, Value>) -> usize {
    let own = lists_properties(fields) || fields.contains_key("additionalProperties");
    let all = fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let single = ["anyOf", "oneOf", "$ref"].iter().filter(|keyword| fields.contains_key(**keyword));
    usize::from(own) + all + single.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_list_properties_are_closed_unless_they_are_combined() {
        let check = |schema: Value, expected: Value| assert_eq!(closed(&schema), expected);
        let shut = |properties: Value| json!({"properties": properties, "additionalProperties": false});
        check(
            json!({"properties": {"a": {"items": {"properties": {"b": {}}}}}}),
            shut(json!({"a": {"items": shut(json!({"b": {}}))}})),
        );
        // Pydantic's reference, and a union of models.
        check(
            json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"properties": {}}}}),
            json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": shut(json!({}))}}),
        );
        check(
            json!({"anyOf": [{"properties": {"a": {}}}, {"type": "null"}]}),
            json!({"anyOf": [shut(json!({"a": {}})), {"type": "null"}]}),
        );
        for open in [
            json!({"type": "object"}),
            json!({"properties": {}, "additionalProperties": true}),
            json!({"properties": {}, "additionalProperties": {"type": "string"}}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]}),
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"required": ["x"]}],
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"properties": {}}}}),
            json!({"enum": [{"properties": {}}], "default": {"properties": {}}}),
        ] {
            check(open.clone(), open);
        }
    }
}
