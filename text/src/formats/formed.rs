//! Parts of the grammars of calls in every syntax: a function with the form of its JSON, and lists of
//! members.

use serde_json::{Value, json};
use skein_grammar::{JsonForm, Refused, Source};

use super::lark::quoted;
use super::tools::Function;

/// A function, and the form of JSON in its arguments.
pub struct Formed<'a> {
    /// The function.
    pub function: &'a Function,
    /// The form of JSON.
    pub json: JsonForm,
}

impl Formed<'_> {
    /// Grammar of one argument.
    pub fn argument(&self, schema: &Value) -> Result<String, Refused> {
        let mut inner = schema.clone();
        for definitions in ["$defs", "definitions"] {
            if let (Some(defined), Value::Object(fields)) =
                (self.function.parameters.get(definitions), &mut inner)
            {
                fields.insert(definitions.to_owned(), defined.clone());
            }
        }
        Source::json_schema_in(&inner, self.json).map(|source| source.nested())
    }

    /// Grammar of an argument of any content.
    pub fn any_argument(&self) -> Result<String, Refused> {
        Source::json_schema_in(&json!({}), self.json).map(|source| source.nested())
    }
}

/// Refuses a strict function if `schema`, at the pointer `at`, limits a string that is not written as JSON.
pub fn refuse_limits(formed: &Formed<'_>, schema: &Value, at: &str) -> Result<(), Refused> {
    let limits = ["pattern", "format", "minLength", "maxLength", "const"];
    let found = limits.iter().find(|limit| schema.get(*limit).is_some());
    match found.filter(|_| formed.function.strict) {
        Some(keyword) => Err(Refused::Keyword {
            pointer: at.to_owned(),
            keyword: (*keyword).to_owned(),
            reason:
                "this model writes strings between tags, where it cannot be enforced; use enum, or leave \
                     it out"
                    .to_owned(),
        }),
        None => Ok(()),
    }
}

/// `a=1, b="x"`: required members in schema order, then any optional ones. A member is its key, whether it is
/// required, and the rule of its value.
pub fn keywords(members: &[(&str, bool, String)], equals: &str, comma: &str) -> String {
    let (mut first, mut text) = (true, String::new());
    let (required, others): (Vec<_>, Vec<_>) = members.iter().partition(|(_, required, _)| *required);
    for (key, _, value) in required {
        let comma = if std::mem::take(&mut first) { "" } else { comma };
        text += &format!(" {} {value}", quoted(&format!("{comma}{key}{equals}")));
    }
    if first && !others.is_empty() {
        // Any optional member may come first.
        let mut rest = String::new();
        let mut starts = Vec::new();
        for (key, _, value) in others.iter().rev() {
            starts.push(format!("{} {value}{rest}", quoted(&format!("{key}{equals}"))));
            rest = format!(" ({} {value})?{rest}", quoted(&format!("{comma}{key}{equals}")));
        }
        text += &format!(" ({})?", starts.join(" | "));
    } else {
        for (key, _, value) in others {
            text += &format!(" ({} {value})?", quoted(&format!("{comma}{key}{equals}")));
        }
    }
    text
}
