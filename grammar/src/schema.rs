//! Checks a JSON schema before compilation. A keyword that cannot be enforced is refused with its name and
//! position: ignoring it could produce answers that violate the schema.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::ecma;
use crate::error::{Refused, check_size};
use crate::form::{self, JsonForm};
use crate::formats;
use crate::limits::{MAX_DEPTH, MAX_OPTIONAL_PROPERTIES, MAX_SCHEMA_BYTES};
use crate::multiples::{self, Step};
use crate::numbers;

/// Constraining keywords that cannot be enforced, with alternatives.
const UNSUPPORTED: [(&str, &str); 21] = [
    ("not", "negation cannot be enforced; list what is allowed"),
    ("if", "conditions cannot be enforced; use anyOf with one branch per case"),
    ("then", "conditions cannot be enforced; use anyOf with one branch per case"),
    ("else", "conditions cannot be enforced; use anyOf with one branch per case"),
    ("contains", NO_ITEM_COUNT),
    ("minContains", NO_ITEM_COUNT),
    ("maxContains", NO_ITEM_COUNT),
    ("uniqueItems", "equal items cannot be prevented; leave it out and check the answer"),
    ("propertyNames", "names cannot be enforced this way; use patternProperties"),
    ("dependentSchemas", DEPENDENT),
    ("dependentRequired", DEPENDENT),
    ("dependencies", DEPENDENT),
    ("unevaluatedProperties", "use additionalProperties"),
    ("unevaluatedItems", "use items"),
    ("$dynamicRef", NO_DYNAMIC),
    ("$dynamicAnchor", NO_DYNAMIC),
    ("$recursiveRef", NO_DYNAMIC),
    ("$recursiveAnchor", NO_DYNAMIC),
    ("extends", "it belongs to draft 3; use allOf"),
    ("disallow", "it belongs to draft 3; list what is allowed"),
    ("x-guidance", "clients cannot set options of the library; leave it out"),
];

const NO_ITEM_COUNT: &str = "items cannot be counted by their content; use prefixItems or items";
const DEPENDENT: &str =
    "dependencies between properties cannot be enforced; use anyOf with one branch per case";
const NO_DYNAMIC: &str = "dynamic references are not followed; use $ref";

/// Formats that are enforced. Others are refused, because JSON Schema leaves their meaning open.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

/// Keywords whose value is a schema.
const SCHEMA: [&str; 5] = ["items", "additionalItems", "additionalProperties", "contains", "not"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 5] = ["anyOf", "allOf", "oneOf", "prefixItems", "items"];
/// Keywords whose value is an object of schemas.
const MAPS: [&str; 2] = ["properties", "patternProperties"];
/// Keywords whose value is an object of schemas that others refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Keywords whose value is a count. JSON Schema lets it be written as `2.0`, the library does not.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
/// Keywords whose values the library may refuse when it compiles a schema: the keyword, the library's
/// message, and what to do instead.
pub const DECIDED_LATER: [(&str, &str, &str); 3] = [
    (
        "oneOf",
        "oneOf constraints are not supported",
        "its branches may overlap; use anyOf, or give the branches different types or a property with different \
         constants",
    ),
    (
        "patternProperties",
        "patternProperty regexes",
        "its expressions may match the same name; write ones that cannot",
    ),
    ("multipleOf", "'multipleOf'", "it must be positive and have few digits"),
];

/// Parts of a schema that only the library can check, so that its faults can be told with their place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unchecked {
    /// Keywords of [`DECIDED_LATER`], each as (keyword, pointer).
    pub decided_later: Vec<(&'static str, String)>,
    /// Regular expressions, each as (pointer, keyword, expression).
    pub patterns: Vec<(String, &'static str, String)>,
}

/// Checks `schema` and its `$ref` targets. Returns what is left to the library.
///
/// # Errors
/// For the first keyword that cannot be enforced, or a size above its limit.
pub fn check(schema: &Value) -> Result<Unchecked, Refused> {
    check_size("JSON schema", schema.to_string().len(), "bytes", MAX_SCHEMA_BYTES)?;
    check_size("JSON schema", depth(schema), "nested objects and lists", MAX_DEPTH)?;
    if !schema.is_object() && !schema.is_boolean() {
        let reason = "a schema must be an object".to_owned();
        return Err(Refused::Unusable { what: "JSON schema", reason });
    }
    let unchecked = Unchecked::default();
    let mut check = Check {
        root: schema,
        seen: HashSet::new(),
        left: Vec::new(),
        alternatives: HashMap::new(),
        steps: Vec::new(),
        merges: false,
        unchecked,
    };
    check.left.push(String::new());
    while let Some(pointer) = check.left.pop() {
        check.schema_at(&pointer)?;
    }
    check.multiples()?;
    check.unchecked.decided_later.sort();
    Ok(check.unchecked)
}

/// The schema's text for the library, with the white space of `form`.
pub fn for_library(schema: &Value, form: JsonForm) -> String {
    let schema = if form.is_closed { &form::closed(schema) } else { schema };
    let mut fields = match prepared(schema) {
        Value::Object(fields) => fields,
        // `true` accepts anything; `false` is refused by the library.
        Value::Bool(true) => Map::new(),
        other => return other.to_string(),
    };
    fields.insert("x-guidance".to_owned(), form.options());
    Value::Object(fields).to_string()
}

/// Rewrites the parts of `schema` that the library interprets differently from JSON Schema.
fn prepared(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let inner = |(keyword, value): (&String, &Value)| {
        let name = keyword.as_str();
        let value = match value {
            Value::Number(count) if COUNTS.contains(&name) => as_count(count),
            Value::Array(items) if LISTS.contains(&name) => items.iter().map(prepared).collect(),
            Value::String(pattern) if name == "pattern" => ecma::pattern(pattern).into(),
            Value::Object(named) if MAPS.contains(&name) || DEFINITIONS.contains(&name) => {
                let is_pattern = name == "patternProperties";
                let name = |name: &String| if is_pattern { ecma::pattern(name).into() } else { name.clone() };
                named.iter().map(|(key, inner)| (name(key), prepared(inner))).collect()
            }
            value if SCHEMA.contains(&name) => prepared(value),
            value => value.clone(),
        };
        (keyword.clone(), value)
    };
    let mut fields: Map<String, Value> = fields.iter().map(inner).collect();
    numbers::rewrite(&mut fields);
    let pattern = fields.get("format").and_then(Value::as_str).and_then(formats::pattern);
    if let Some(pattern) = pattern {
        fields.shift_remove("format");
        numbers::add_to_all(&mut fields, json!({"pattern": pattern}));
    }
    fields.into()
}

/// Converts `2.0` to `2`; the library reports invalid counts.
fn as_count(number: &serde_json::Number) -> Value {
    let whole = number.as_f64().filter(|float| float.fract() == 0.0 && (0.0..1e9).contains(float));
    whole.map_or_else(|| number.clone().into(), |float| (float as u64).into())
}

/// Deepest nesting of brackets in a text, including brackets in strings: a bound for recursive parsers.
pub fn nesting(text: &str) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => now += 1,
            b')' | b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// Most objects and lists of `value` inside each other.
fn depth(value: &Value) -> usize {
    let inner: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => return 0,
    };
    1 + inner.map(depth).max().unwrap_or(0)
}

struct Check<'a> {
    root: &'a Value,
    seen: HashSet<String>,
    /// Pointers to schemas not yet checked.
    left: Vec<String>,
    /// Optional parts that may come next at the start of each schema, by its pointer.
    alternatives: HashMap<String, usize>,
    /// Steps of `multipleOf`, each with its pointer.
    steps: Vec<(Step, String)>,
    /// Whether the library intersects schemas.
    merges: bool,
    unchecked: Unchecked,
}

impl Check<'_> {
    fn schema_at(&mut self, pointer: &str) -> Result<(), Refused> {
        if !self.seen.insert(pointer.to_owned()) {
            return Ok(());
        }
        let Some(Value::Object(fields)) = self.root.pointer(pointer) else { return Ok(()) };
        let refuse = |keyword: &str, reason: String| {
            Err(Refused::Keyword { pointer: pointer.to_owned(), keyword: keyword.to_owned(), reason })
        };
        for (keyword, reason) in UNSUPPORTED {
            if fields.contains_key(keyword) {
                return refuse(keyword, reason.to_owned());
            }
        }
        if let Some(format) = fields.get("format").and_then(Value::as_str)
            && !FORMATS.contains(&format)
        {
            let known = FORMATS[..FORMATS.len() - 1].join(", ");
            return refuse(
                "format",
                format!("the format `{format}` is not enforced; use one of {known}, or pattern"),
            );
        }
        if let Err((keyword, reason)) = numbers::check(fields) {
            return refuse(keyword, reason);
        }
        self.steps.extend(multiples::step(fields).map(|step| (step, pointer.to_owned())));
        self.merges |= is_merged(fields);
        let optional = self.optional_properties(pointer, 0);
        if optional > MAX_OPTIONAL_PROPERTIES {
            let reason = format!(
                "{optional} of them are optional at one place, the limit is {MAX_OPTIONAL_PROPERTIES}; list more in \
                 `required`, or divide the object"
            );
            return refuse("properties", reason);
        }
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            match self.local(reference) {
                Some(target) => self.left.push(target),
                None => {
                    return refuse("$ref", format!("`{reference}` is not in this schema; use #/$defs/…"));
                }
            }
        }
        self.add_inner(pointer, fields);
        Ok(())
    }

    /// Refuses multiples that the library may have to merge, if it would exceed its numbers.
    fn multiples(&self) -> Result<(), Refused> {
        let steps: Vec<Step> = self.steps.iter().map(|(step, _)| *step).collect();
        let Some((_, pointer)) =
            self.steps.last().filter(|_| self.merges && !multiples::can_be_merged(&steps))
        else {
            return Ok(());
        };
        let reason = "the schema combines parts, and the least common multiple of its multiples is too large"
            .to_owned();
        Err(Refused::Keyword { pointer: pointer.clone(), keyword: "multipleOf".to_owned(), reason })
    }

    /// Optional properties among which an answer chooses at one place: those of the schema, of its branches
    /// and of what it refers to. A schema that refers to itself adds nothing, and neither does one behind
    /// [`MAX_DEPTH`] others.
    fn optional_properties(&mut self, pointer: &str, above: usize) -> usize {
        if let Some(known) = self.alternatives.get(pointer) {
            return *known;
        }
        if above > MAX_DEPTH {
            return 0;
        }
        self.alternatives.insert(pointer.to_owned(), 0);
        let Some(Value::Object(fields)) = self.root.pointer(pointer) else { return 0 };
        let required: HashSet<&str> = fields
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let named = fields.get("properties").and_then(Value::as_object).into_iter().flatten();
        let mut count = named.filter(|(name, _)| !required.contains(name.as_str())).count();
        let branches = |keyword| fields.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
        for keyword in ["anyOf", "oneOf", "allOf"] {
            for at in 0..branches(keyword) {
                let branch = format!("{pointer}/{keyword}/{at}");
                count = count.saturating_add(self.optional_properties(&branch, above + 1));
            }
        }
        let target = fields.get("$ref").and_then(Value::as_str).and_then(|reference| self.local(reference));
        count = count.saturating_add(target.map_or(0, |target| self.optional_properties(&target, above + 1)));
        self.alternatives.insert(pointer.to_owned(), count);
        count
    }

    /// JSON pointer of a reference within the schema. The library resolves `$id` and `$anchor`; their targets
    /// are checked as parts of the whole schema.
    fn local(&self, reference: &str) -> Option<String> {
        let pointer = reference.strip_prefix('#')?;
        let decoded = percent_decoded(pointer)?;
        if decoded.is_empty() || self.root.pointer(&decoded).is_some() { Some(decoded) } else { None }
    }

    fn add_inner(&mut self, pointer: &str, fields: &Map<String, Value>) {
        for keyword in SCHEMA {
            self.left.extend(fields.get(keyword).map(|_| format!("{pointer}/{keyword}")));
        }
        for keyword in LISTS {
            let count = fields.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
            self.left.extend((0..count).map(|at| format!("{pointer}/{keyword}/{at}")));
        }
        for keyword in MAPS {
            let inner = fields.get(keyword).and_then(Value::as_object).into_iter().flatten();
            let escaped = inner.map(|(name, _)| name.replace('~', "~0").replace('/', "~1"));
            self.left.extend(escaped.map(|name| format!("{pointer}/{keyword}/{name}")));
        }
        let decided_later = DECIDED_LATER.iter().filter(|(keyword, ..)| fields.contains_key(*keyword));
        let decided_later = decided_later.map(|(keyword, ..)| (*keyword, pointer.to_owned()));
        self.unchecked.decided_later.extend(decided_later);
        let own = fields.get("pattern").and_then(Value::as_str).map(|pattern| ("pattern", pattern));
        let names = fields.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        let patterns = names.map(|(name, _)| ("patternProperties", name.as_str())).chain(own);
        // As the library's messages quote them.
        let patterns =
            patterns.map(|(keyword, pattern)| (pointer.to_owned(), keyword, ecma::pattern(pattern).into()));
        self.unchecked.patterns.extend(patterns);
    }
}

/// Whether the library intersects parts of this schema with each other.
fn is_merged(fields: &Map<String, Value>) -> bool {
    let has = |keywords: &[&str]| keywords.iter().any(|keyword| fields.contains_key(*keyword));
    has(&["allOf", "patternProperties"])
        || has(&["$ref", "anyOf", "oneOf"])
            && has(&["multipleOf", "properties", "additionalProperties", "items", "prefixItems"])
}

/// Decodes `%2F` to `/`; `None` if the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digits = (byte == b'%').then(|| (rest.next(), rest.next()));
        match digits {
            None => bytes.push(byte),
            Some((Some(high), Some(low))) => {
                let hex = [high, low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
            }
            Some(_) => return None,
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_enforced_is_refused_by_pointer_and_keyword() {
        let check = |schema: Value, at: &str, name: &str| match check(&schema) {
            Err(Refused::Keyword { pointer, keyword, .. }) => assert_eq!((&*pointer, &*keyword), (at, name)),
            other => panic!("{schema}: {other:?}"),
        };
        check(json!({"not": {}}), "", "not");
        check(json!({"properties": {"a/b": {"uniqueItems": true}}}), "/properties/a~1b", "uniqueItems");
        check(json!({"anyOf": [{}, {"if": {}}]}), "/anyOf/1", "if");
        check(json!({"items": {"format": "regex"}}), "/items", "format");
        check(json!({"$ref": "http://example.org/a.json"}), "", "$ref");
        check(json!({"$ref": "#/$defs/missing"}), "", "$ref");
        check(json!({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {}}}}), "/$defs/a", "contains");
        check(json!({"x-guidance": {"lenient": true}}), "", "x-guidance");
    }

    #[test]
    fn names_and_constants_are_not_keywords() {
        let check = |schema: Value| assert_eq!(check(&schema), Ok(Unchecked::default()), "{schema}");
        check(json!({"properties": {"not": {"type": "string"}}}));
        check(json!({"const": {"not": 1}}));
        check(json!({"enum": [{"if": 1}], "description": "x", "x-vendor": true}));
        check(json!({"$ref": "#", "$defs": {"unused": {"not": {}}}}));
        check(json!({"$ref": "#/$defs/a%2Fb".replace("%2F", "~1"), "$defs": {"a/b": {}}}));
    }

    #[test]
    fn what_the_library_reads_otherwise_is_rewritten() {
        let check = |schema: Value, expected: Value| assert_eq!(prepared(&schema), expected);
        check(json!({"maxLength": 2.0, "default": 2.0}), json!({"maxLength": 2, "default": 2.0}));
        check(json!({"maxLength": 2.5}), json!({"maxLength": 2.5}));
        check(
            json!({"$defs": {"a": {"items": {"minItems": 1.0}}}, "enum": [{"minItems": 1.0}]}),
            json!({"$defs": {"a": {"items": {"minItems": 1}}}, "enum": [{"minItems": 1.0}]}),
        );
        let email = formats::pattern("email").unwrap();
        check(
            json!({"anyOf": [{"format": "email"}, {"format": "email", "allOf": [{"minLength": 5}]}, true]}),
            json!({"anyOf": [{"allOf": [{"pattern": email}]}, {"allOf": [{"minLength": 5}, {"pattern": email}]}, true]}),
        );
    }

    #[test]
    fn sizes_are_limited() {
        let mut deep = json!({});
        for _ in 0..MAX_DEPTH - 1 {
            deep = json!({"items": deep});
        }
        assert!(check(&deep).is_ok());
        // The true depth is told, not the first one above the limit.
        for (more, told) in [(1, 65), (6, 70), (46, 110)] {
            let deeper = (0..more).fold(deep.clone(), |inner, _| json!({"items": inner}));
            let refused = check(&deeper).unwrap_err().to_string();
            let expected = format!("has {told} nested objects and lists, the limit is 64");
            assert!(refused.contains(&expected), "{refused}");
        }
        let refused = check(&json!({"const": "x".repeat(MAX_SCHEMA_BYTES)})).unwrap_err().to_string();
        assert!(refused.contains("the limit is 65536"), "{refused}");
    }
}
