//! Fields that offer tools to the model: OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.

use serde_json::{Map, Value};

use super::fields::{Fields, wrong};
use crate::formats::MAX_NAME_BYTES;
use crate::formats::tools::{Choice, Function, MAX_BYTES, MAX_FUNCTIONS, ToolUse};
use crate::refusal::Refusal;

/// Tools of a request, and the list that the chat template renders.
#[derive(Debug, Default)]
pub struct Offered {
    /// Functions that the model may call.
    pub tools: ToolUse,
    /// List for the template, in OpenAI's format; empty = no tools.
    pub shown: Vec<Value>,
}

/// Takes the tool fields of a chat request.
pub fn tools(fields: &mut Fields) -> Offered {
    let list = match fields.take("tools") {
        None => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(other) => {
            fields.note(wrong("tools", "a list of tools", &other));
            Vec::new()
        }
    };
    let choice = fields.take("tool_choice");
    let parallel = fields.optional_bool("parallel_tool_calls").unwrap_or(true);
    let functions = list.iter().enumerate().map(|(at, tool)| of_chat(at, tool)).collect();
    let functions: Vec<Function> = fields.value_of(functions);
    let choice = fields.value_of(chat_choice(choice.as_ref()));
    let shown = list.into_iter().map(shown).collect();
    let offered = offered(functions, shown, choice, parallel);
    fields.value_of(offered)
}

/// Checks the functions and the tool choice together.
///
/// # Errors
/// [`Refusal::Invalid`] for too many functions, duplicate names, or a required call without functions.
pub fn offered(
    functions: Vec<Function>,
    shown: Vec<Value>,
    choice: Option<Choice>,
    parallel: bool,
) -> Result<Offered, Refusal> {
    if functions.len() > MAX_FUNCTIONS {
        let message = format!("tools takes at most {MAX_FUNCTIONS} functions, got {}.", functions.len());
        return Err(Refusal::invalid("tools", message));
    }
    let bytes: usize = shown.iter().map(|tool| tool.to_string().len()).sum();
    if bytes > MAX_BYTES {
        let message = format!("tools takes at most {MAX_BYTES} bytes of JSON, got {bytes}.");
        return Err(Refusal::invalid("tools", message));
    }
    let mut names = std::collections::HashSet::new();
    if let Some(twice) = functions.iter().find(|function| !names.insert(&function.name)) {
        let message = format!("tools has two functions named `{}`.", twice.name);
        return Err(Refusal::invalid("tools", message));
    }
    if functions.is_empty() && !matches!(choice, None | Some(Choice::None | Choice::Auto)) {
        return Err(Refusal::invalid("tool_choice", "tool_choice requires a call, but there are no tools."));
    }
    let choice = if functions.is_empty() { Choice::None } else { choice.unwrap_or(Choice::Auto) };
    Ok(Offered { tools: ToolUse { functions: functions.into(), choice, parallel }, shown })
}

fn of_chat(at: usize, tool: &Value) -> Result<Function, Refusal> {
    if tool["type"] != "function" {
        return Err(not_a_function(at, &tool["type"]));
    }
    let Some(function) = tool["function"].as_object() else {
        let message = format!("tools[{at}].function is required: an object with name and parameters.");
        return Err(Refusal::invalid("tools", message));
    };
    let strict = function.get("strict").is_some_and(|strict| *strict == true);
    function_of(at, function, "parameters", strict)
}

/// Refusal of a tool that is not a function.
pub fn not_a_function(at: usize, kind: &Value) -> Refusal {
    let kind: String = kind.as_str().unwrap_or("none").escape_default().take(40).collect();
    let message =
        format!("tools[{at}].type must be `function`, got `{kind}`; this server runs no tools itself.");
    Refusal::invalid("tools", message)
}

/// Parses an object with `name` and a schema under `parameters`.
///
/// # Errors
/// [`Refusal::Invalid`] for an invalid name or schema.
pub fn function_of(
    at: usize,
    function: &Map<String, Value>,
    parameters: &str,
    strict: bool,
) -> Result<Function, Refusal> {
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(plain) {
        let message = format!(
            "tools[{at}] must have a name of 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`."
        );
        return Err(Refusal::invalid("tools", message));
    }
    let schema = match function.get(parameters) {
        None | Some(Value::Null) => None,
        Some(Value::Object(fields)) if is_of_object(fields) => Some(Value::Object(fields.clone())),
        Some(_) => {
            let message = format!("tools[{at}]: {parameters} must be a JSON schema of an object.");
            return Err(Refusal::invalid("tools", message));
        }
    };
    Ok(Function::new(name.to_owned(), schema, strict))
}

fn is_of_object(schema: &Map<String, Value>) -> bool {
    schema.get("type").is_none_or(|kind| *kind == "object")
}

/// Parses the `tool_choice` of a chat request.
fn chat_choice(choice: Option<&Value>) -> Result<Option<Choice>, Refusal> {
    let Some(choice) = choice else { return Ok(None) };
    if let Some(choice) = choice.as_str().and_then(word) {
        return Ok(Some(choice));
    }
    let name = (choice["type"] == "function").then(|| choice["function"]["name"].as_str()).flatten();
    named(name)
}

/// Parses `auto`, `none` or `required`.
pub fn word(word: &str) -> Option<Choice> {
    match word {
        "auto" => Some(Choice::Auto),
        "none" => Some(Choice::None),
        "required" => Some(Choice::Required),
        _ => None,
    }
}

/// Choice of the function `name`.
///
/// # Errors
/// [`Refusal::Invalid`] without a name.
pub fn named(name: Option<&str>) -> Result<Option<Choice>, Refusal> {
    match name {
        Some(name) => Ok(Some(Choice::Named(name.to_owned()))),
        None => {
            let message = "tool_choice must be `auto`, `none`, `required`, or {\"type\": \"function\", \"function\": \
                           {\"name\": …}}.";
            Err(Refusal::invalid("tool_choice", message))
        }
    }
}

/// A tool for the chat template, without `strict`, which has no meaning for the model.
fn shown(mut tool: Value) -> Value {
    if let Some(function) = tool["function"].as_object_mut() {
        function.shift_remove("strict");
    }
    tool
}
