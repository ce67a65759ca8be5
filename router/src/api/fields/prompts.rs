//! Prompts of one call: text, token ids, or a list of either.

use serde_json::Value;

use super::field::Field;
use super::object::{integers, wrong};
use crate::refusal::Refusal;
use crate::request::Prompt;

/// The forms of prompts, for errors.
const EXPECTED: &str = "a string, a list of strings, a list of token ids or a list of lists of token ids";

/// Reads the field `name`, which holds 1 to `most` prompts.
///
/// # Errors
/// If it is missing, empty, of another form, or holds more.
pub fn prompts(name: &'static str, field: Option<Field>, most: usize) -> Result<Vec<Prompt>, Refusal> {
    let one = |item: Field| match item {
        Field::Other(Value::String(text)) => Ok(Prompt::Text(text)),
        Field::Integers(ids) => Ok(Prompt::Tokens(ids)),
        Field::List(items) => integers(name, items).map(Prompt::Tokens),
        Field::Other(other) => Err(wrong(name, EXPECTED, &other)),
    };
    let prompts = match field {
        None => return Err(Refusal::invalid(name, format!("{name} is required: {EXPECTED}."))),
        Some(Field::List(items)) if items.is_empty() => {
            return Err(Refusal::invalid(name, format!("{name} must not be an empty list.")));
        }
        Some(Field::List(items)) if matches!(items[0], Field::Other(Value::Number(_))) => {
            vec![one(Field::List(items))?]
        }
        Some(Field::List(items)) => {
            if items.len() > most {
                let got = items.len();
                return Err(Refusal::invalid(
                    name,
                    format!("{name} takes at most {most} prompts, got {got}."),
                ));
            }
            items.into_iter().map(one).collect::<Result<_, _>>()?
        }
        Some(other) => vec![one(other)?],
    };
    Ok(prompts)
}
