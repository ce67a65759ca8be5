//! Fields that offer tools to the model: OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.

use serde_json::{Map, Value};
use skein_text::formats::MAX_NAME_BYTES;
use skein_text::formats::tools::{Choice, Function, MAX_BYTES, MAX_FUNCTIONS, ToolUse};

use super::listing::Kind;
use super::object::Fields;
use crate::refusal::Refusal;

/// Tools of a request, and the list that the chat template renders.
#[derive(Debug, Default)]
pub struct Offered {
    /// Functions that the model may call.
    pub tools: ToolUse,
    /// List for the template, in OpenAI's format; empty = no tools.
    pub shown: Vec<Value>,
}

/// A parsed `tool_choice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Whether and what to call.
    pub choice: Choice,
    /// Functions that may be called; `None` = all.
    pub allowed: Option<Vec<String>>,
}

impl From<Choice> for Chosen {
    fn from(choice: Choice) -> Self {
        Self { choice, allowed: None }
    }
}

/// Takes the fields of a chat request.
pub fn tools(fields: &mut Fields) -> Offered {
    let list = list(fields, "ChatTool");
    let choice = fields.take("tool_choice", Kind::Shaped("ChatToolChoice"));
    let parallel = fields.optional_bool("parallel_tool_calls").unwrap_or(true);
    let of_tool = |tool: &Value| {
        let name = (tool["type"] == "function").then(|| tool["function"]["name"].as_str()).flatten();
        name.map(str::to_owned)
    };
    let allowed = choice.as_ref().map(|choice| &choice["allowed_tools"]);
    let chosen = chosen(choice.as_ref(), allowed, of_tool);
    let tools = list.into_iter().enumerate().map(|(at, tool)| Ok((of_chat(at, &tool)?, shown(tool))));
    offered(fields, tools.collect(), chosen, parallel)
}

/// Takes the field `tools`, a list of what the component `shape` describes; empty if absent.
pub fn list(fields: &mut Fields, shape: &'static str) -> Vec<Value> {
    fields.list("tools", Kind::ListOf(shape), "a list of tools").unwrap_or_default()
}

/// The tools, each as a function and as shown by the template, with the allowed calls. Notes faults.
pub fn offered(
    fields: &mut Fields,
    tools: Result<Vec<(Function, Value)>, Refusal>,
    chosen: Result<Option<Chosen>, Refusal>,
    parallel: bool,
) -> Offered {
    let (functions, shown) = fields.value_of(tools).into_iter().unzip();
    let chosen = fields.value_of(chosen);
    if fields.has_fault("tools") {
        // Without the tools nothing can be said about the choice among them.
        return Offered::default();
    }
    fields.value_of(checked(functions, shown, chosen, parallel))
}

/// Checks the functions and the tool choice together.
///
/// # Errors
/// [`Refusal::Invalid`] for too many functions, equal names, or a choice without functions.
pub fn checked(
    functions: Vec<Function>,
    shown: Vec<Value>,
    chosen: Option<Chosen>,
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
    let Chosen { choice, allowed } = chosen.unwrap_or_else(|| Choice::Auto.into());
    if functions.is_empty() && choice.is_forced() {
        return Err(Refusal::invalid("tool_choice", "tool_choice asks for a call, but there are no tools."));
    }
    let stranger = allowed.iter().flatten().find(|name| !names.contains(*name));
    if let Some(stranger) = stranger {
        let stranger: String = stranger.escape_default().take(64).collect();
        let message = format!("tool_choice allows `{stranger}`, which is not among the tools.");
        return Err(Refusal::invalid("tool_choice", message));
    }
    drop(names);
    let choice = if functions.is_empty() { Choice::None } else { choice };
    // A list of all functions is no restriction.
    let allowed =
        allowed.filter(|allowed| functions.iter().any(|function| !allowed.contains(&function.name)));
    // A named function is called once, as in vLLM: small models repeat a forced call until `max_tokens`.
    let parallel = parallel && !matches!(choice, Choice::Named(_));
    let tools = ToolUse { functions: functions.into(), choice, allowed: allowed.map(Into::into), parallel };
    Ok(Offered { tools, shown })
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
        let got: String = name.escape_default().take(MAX_NAME_BYTES).collect();
        let message = format!(
            "tools[{at}] must have a name of 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`, got `{got}`."
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

/// Parses OpenAI's `tool_choice`: a word, a named tool, or `allowed_tools`. `name_of` returns a tool's name,
/// and `allowed` contains the mode and list of allowed tools.
///
/// # Errors
/// [`Refusal::Invalid`] for any other form.
pub fn chosen(
    choice: Option<&Value>,
    allowed: Option<&Value>,
    name_of: impl Fn(&Value) -> Option<String>,
) -> Result<Option<Chosen>, Refusal> {
    let Some(choice) = choice else { return Ok(None) };
    let refused = || {
        let message = "tool_choice must be `auto`, `none`, `required`, one of the tools as {\"type\": \"function\", …} \
                       with its name, or {\"type\": \"allowed_tools\", …} with a mode and tools.";
        Refusal::invalid("tool_choice", message)
    };
    let word = |value: &Value| value.as_str().and_then(word);
    if choice["type"] != "allowed_tools" {
        let named = || Some(Choice::Named(name_of(choice)?));
        let found = if choice.is_string() { word(choice) } else { named() };
        return found.map(|choice| Some(choice.into())).ok_or_else(refused);
    }
    let mode = allowed.and_then(|allowed| word(&allowed["mode"])).filter(|mode| *mode != Choice::None);
    let names: Option<Vec<String>> =
        allowed.and_then(|allowed| allowed["tools"].as_array()?.iter().map(name_of).collect());
    match (mode, names) {
        (Some(choice), Some(names)) if !names.is_empty() => Ok(Some(Chosen { choice, allowed: Some(names) })),
        _ => Err(refused()),
    }
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

/// A tool as shown by the template, without `strict`, which has no meaning to the model.
fn shown(mut tool: Value) -> Value {
    if let Some(function) = tool["function"].as_object_mut() {
        function.shift_remove("strict");
    }
    tool
}
