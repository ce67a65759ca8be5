//! Fields that constrain the answer's format: OpenAI's `response_format`, vLLM's `structured_outputs` and the
//! older `guided_*`.

use serde_json::{Map, Value};
use skein_grammar::{JsonForm, Refused, Source};

use super::listing::Kind;
use super::object::{Fields, is_too_deep, too_deep, wrong};
use crate::refusal::Refusal;
use crate::request::Constraint;

/// Takes the fields. At most one of them may set a constraint.
pub fn constraint(fields: &mut Fields) -> Option<Constraint> {
    let response_format = fields.take("response_format", Kind::Shaped("ResponseFormat"));
    let structured =
        fields.object_as("structured_outputs", Kind::Shaped("StructuredOutputs")).unwrap_or_default();
    let guided = GUIDED.map(|(field, kind, shape)| (field, kind, fields.take(field, Kind::Shaped(shape))));
    // The client cannot choose the backend; the field has no effect, as in current vLLM.
    fields.take("guided_decoding_backend", Kind::WithoutEffect);
    let mut found: Vec<Found> = Vec::new();
    let response_format = response_format.and_then(|format| {
        leave_unknown(fields, &format);
        of_response_format(&format).transpose()
    });
    found.extend(response_format.map(|constraint| Found::new("response_format", "", constraint)));
    found.extend(of_structured_outputs(structured, fields));
    for (field, kind, value) in guided {
        let constraint = value.and_then(|value| source(field, kind, &value).transpose());
        found.extend(constraint.map(|constraint| Found::new(field, "", constraint)));
    }
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        let message = format!("only one field may constrain the answer's format, got {}.", names.join(", "));
        fields.note(Refusal::invalid(found[0].field, message));
        return None;
    }
    fields.value_of(found.pop()?.constraint.map(Some))
}

/// A field that sets a constraint.
struct Found {
    field: &'static str,
    /// The field with its part, as `structured_outputs.regex`.
    name: String,
    constraint: Result<Constraint, Refusal>,
}

impl Found {
    fn new(field: &'static str, part: &str, constraint: Result<Constraint, Refusal>) -> Self {
        let name = if part.is_empty() { field.to_owned() } else { format!("{field}.{part}") };
        Self { field, name, constraint }
    }
}

/// Older fields, each with its name in `structured_outputs` and what it takes.
const GUIDED: [(&str, &str, &str); 4] = [
    ("guided_json", "json", "SchemaOrText"),
    ("guided_regex", "regex", "Expression"),
    ("guided_choice", "choice", "ChoiceOfTexts"),
    ("guided_grammar", "grammar", "Expression"),
];

/// Keys that `structured_outputs` may contain.
const KINDS: [&str; 6] = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];

/// Notes a fault for other keys.
fn of_structured_outputs(mut structured: Map<String, Value>, fields: &mut Fields) -> Vec<Found> {
    let field = "structured_outputs";
    let mut found = Vec::new();
    let form = form(&mut structured);
    for kind in KINDS {
        let value = structured.shift_remove(kind);
        let constraint = value.and_then(|value| source(field, kind, &value).transpose());
        let constraint = constraint.map(|constraint| constraint.and_then(|one| in_form(one, form)));
        found.extend(constraint.map(|constraint| Found::new(field, kind, constraint)));
    }
    // Hints for vLLM's backends that do not change the result here.
    for hint in ["disable_fallback", "whitespace_pattern"] {
        if structured.get(hint).is_some_and(|value| value.is_null() || *value == false) {
            structured.shift_remove(hint);
        }
    }
    if let Some((name, _)) = structured.into_iter().next() {
        let name: String = name.chars().take(64).collect();
        fields.note(Refusal::invalid(
            field,
            format!("structured_outputs.{name} is not supported; leave it out."),
        ));
    }
    found
}

/// Lists the members of `response_format` that have no effect beside the unknown fields.
fn leave_unknown(fields: &mut Fields, format: &Value) {
    let known: &[&str] = match format["type"].as_str() {
        Some("json_object") => &["type", "schema"],
        Some("json_schema") => &["type", "json_schema"],
        Some("structural_tag") => return,
        _ => &["type"],
    };
    let mut leave = |path: &str, object: &Value, known: &[&str]| {
        let members = object.as_object().into_iter().flatten();
        let unknown = members.filter(|(name, value)| !known.contains(&name.as_str()) && !value.is_null());
        unknown.for_each(|(name, _)| fields.leave(format!("{path}.{name}")));
    };
    leave("response_format", format, known);
    if known.contains(&"json_schema") {
        let known = ["name", "description", "schema", "strict"];
        leave("response_format.json_schema", &format["json_schema"], &known);
    }
}

/// Takes vLLM's options of one request. Others than flags are left, and refused.
fn form(structured: &mut Map<String, Value>) -> JsonForm {
    let mut flag = |name: &str| match structured.get(name) {
        Some(Value::Null | Value::Bool(_)) => structured.shift_remove(name) == Some(Value::Bool(true)),
        _ => false,
    };
    JsonForm { is_compact: flag("disable_any_whitespace"), is_closed: flag("disable_additional_properties") }
}

fn in_form(constraint: Constraint, form: JsonForm) -> Result<Constraint, Refusal> {
    let Constraint { source, field } = constraint;
    let source = source.in_form(form).map_err(|refused| refusal(field, &refused))?;
    Ok(Constraint { source, field })
}

/// Whether a schema allows everything.
fn is_any(schema: &Value) -> bool {
    schema.is_null() || *schema == true || schema.as_object().is_some_and(Map::is_empty)
}

/// OpenAI's field. The schema is enforced even with `strict: false`; `strict: true` also closes objects.
/// Other servers take one with `json_object`, too.
fn of_response_format(format: &Value) -> Result<Option<Constraint>, Refusal> {
    let field = "response_format";
    match format["type"].as_str() {
        None if format.is_null() => Ok(None),
        Some("text") => Ok(None),
        Some("json_object") => match format.get("schema").filter(|schema| !is_any(schema)) {
            Some(schema) => source(field, "json", schema),
            None => source(field, "json_object", &Value::Bool(true)),
        },
        Some("json_schema") => match format["json_schema"].get("schema").filter(|schema| !schema.is_null()) {
            Some(schema) => {
                let is_closed = format["json_schema"]["strict"] == true;
                let form = JsonForm { is_closed, ..JsonForm::default() };
                source(field, "json", schema)?.map(|constraint| in_form(constraint, form)).transpose()
            }
            None => Err(Refusal::invalid(field, "response_format.json_schema.schema is required.")),
        },
        Some("structural_tag") => source(field, "structural_tag", format),
        _ => {
            let message =
                "response_format.type must be `text`, `json_object`, `json_schema` or `structural_tag`.";
            Err(Refusal::invalid(field, message))
        }
    }
}

/// Constraint of `kind` given by `value`; `None` if `value` sets none.
fn source(field: &'static str, kind: &str, value: &Value) -> Result<Option<Constraint>, Refusal> {
    if value.is_null() {
        return Ok(None);
    }
    let text = || value.as_str().ok_or_else(|| wrong(field, "a string", value));
    // vLLM accepts JSON as an object or as a string.
    let parsed = || match value {
        Value::String(text) => serde_json::from_str(text).map_err(|error| {
            let message = if is_too_deep(&error) {
                too_deep(&format!("{field}: the text"), &error)
            } else {
                format!("{field}: the text is not JSON: {error}.")
            };
            Refusal::invalid(field, message)
        }),
        other => Ok(other.clone()),
    };
    let source = match kind {
        "json" => Source::json_schema(&parsed()?),
        "structural_tag" => Source::structural_tag(&parsed()?),
        "regex" => Source::regex(text()?),
        "grammar" => Source::grammar(text()?),
        "json_object" if *value == false => return Ok(None),
        "json_object" => Source::json_object(),
        _ => {
            let choices = value.as_array().into_iter().flatten().map(Value::as_str);
            let choices: Option<Vec<&str>> = choices.collect();
            let choices = choices.filter(|_| value.is_array());
            Source::choice(&choices.ok_or_else(|| wrong(field, "a list of strings", value))?)
        }
    };
    source.map(|source| Some(Constraint { source, field })).map_err(|refused| refusal(field, &refused))
}

/// Refusal of the constraint in `field`.
fn refusal(field: &'static str, refused: &Refused) -> Refusal {
    Refusal::invalid(field, format!("{field}: {refused}."))
}
