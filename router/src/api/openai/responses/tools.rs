//! The tools of the Responses API. To the model each is a function with one name. The client sees calls of
//! the type that it offered: a function, a function in a namespace, or a free-text tool.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use skein_text::formats::tools::Function;

use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::api::fields::tools::{self, Offered, chosen, function_of, not_a_function, offered};
use crate::refusal::Refusal;

/// Tools that run on OpenAI's servers. They are dropped and listed as ignored, because OpenAI's own clients
/// offer them to every server and models work without them.
const HOSTED: [&str; 5] =
    ["web_search", "web_search_preview", "image_generation", "code_interpreter", "file_search"];
/// Only argument of the function that represents a free-text tool.
const INPUT: &str = "input";

/// The client's type of a tool that is a function to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Face {
    /// A free-text tool.
    Custom,
    /// The function `name` in `namespace`.
    Within {
        /// Name of the namespace.
        namespace: String,
        /// The function's name in it.
        name: String,
    },
}

/// Tools that are not plain functions to the client, by the model's name.
pub type Faces = HashMap<String, Face>;

/// Takes the tools and the tool choice; copies them to `echo` unchanged.
pub fn tools(fields: &mut Fields, echo: &mut Map<String, Value>) -> (Offered, Faces) {
    let list = tools::list(fields, "ResponsesTool");
    let choice = fields.take("tool_choice", Kind::Shaped("ResponsesToolChoice"));
    let parallel = fields.optional_bool("parallel_tool_calls").unwrap_or(true);
    echo.insert("tools".to_owned(), list.clone().into());
    echo.insert("tool_choice".to_owned(), choice.clone().unwrap_or_else(|| "auto".into()));
    echo.insert("parallel_tool_calls".to_owned(), parallel.into());
    let mut read = Read::default();
    let faults: Result<(), Refusal> = list.iter().enumerate().try_for_each(|(at, tool)| read.tool(at, tool));
    read.left.into_iter().for_each(|name| fields.leave(name));
    let chosen = chosen(choice.as_ref(), choice.as_ref(), name_of);
    let offered = offered(fields, faults.map(|()| read.tools), chosen, parallel);
    (offered, read.faces)
}

/// The model's name for the tool that `choice`, or an entry of `allowed_tools`, names.
fn name_of(choice: &Value) -> Option<String> {
    let name = choice["name"].as_str()?;
    match choice["type"].as_str()? {
        "function" | "custom" => Some(qualified(choice["namespace"].as_str(), name)),
        _ => None,
    }
}

/// The model's name for a function in a namespace.
pub fn qualified(namespace: Option<&str>, name: &str) -> String {
    match namespace.unwrap_or_default() {
        "" => name.to_owned(),
        // Codex's namespaces of MCP servers already end with it.
        namespace if namespace.ends_with("__") => format!("{namespace}{name}"),
        namespace => format!("{namespace}__{name}"),
    }
}

/// Arguments of the function that represents a free-text tool.
pub fn arguments_of(input: &str) -> String {
    json!({INPUT: input}).to_string()
}

/// The free text in such arguments; the whole arguments if the model wrote something else.
pub fn input_of(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|parsed| parsed[INPUT].as_str());
    input.unwrap_or(arguments).to_owned()
}

#[derive(Default)]
struct Read {
    tools: Vec<(Function, Value)>,
    faces: Faces,
    /// Names of ignored tools.
    left: Vec<String>,
}

impl Read {
    fn tool(&mut self, at: usize, tool: &Value) -> Result<(), Refusal> {
        match tool["type"].as_str().unwrap_or_default() {
            "function" => self.function(at, tool, None),
            "custom" => self.custom(at, tool),
            "namespace" => {
                let inner = tool["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
                inner.iter().try_for_each(|function| match function["type"].as_str() {
                    Some("function") => self.function(at, function, tool["name"].as_str()),
                    _ => Err(not_a_function(at, &function["type"])),
                })
            }
            // Versioned names end with a date.
            kind if HOSTED.iter().any(|hosted| kind.starts_with(hosted)) => {
                self.left.push(format!("tools[{at}].{kind}"));
                Ok(())
            }
            "local_shell" | "shell" | "apply_patch" => {
                let message = format!(
                    "tools[{at}].type `{}` is a tool that only OpenAI's models were trained on; offer a function that \
                     does the same.",
                    tool["type"].as_str().unwrap_or_default()
                );
                Err(Refusal::invalid("tools", message))
            }
            _ => Err(not_a_function(at, &tool["type"])),
        }
    }

    /// Adds a function. It is strict only if its field says so; OpenAI also makes others strict by rewriting
    /// their schemas.
    fn function(&mut self, at: usize, tool: &Value, namespace: Option<&str>) -> Result<(), Refusal> {
        let mut shown: Map<String, Value> = tool.as_object().cloned().unwrap_or_default();
        let strict = shown.get("strict").is_some_and(|strict| *strict == true);
        let name = tool["name"].as_str().unwrap_or_default();
        let known = qualified(namespace, name);
        if let Some(namespace) = namespace {
            let face = Face::Within { namespace: namespace.to_owned(), name: name.to_owned() };
            self.faces.insert(known.clone(), face);
        }
        shown.insert("name".to_owned(), known.into());
        let function = function_of(at, &shown, "parameters", strict)?;
        self.tools.push((function, in_chats_form(&shown)));
        Ok(())
    }

    /// Adds a free-text tool, which is a function with one text argument to the model. Its grammar is shown
    /// to the model but not enforced, because inside a JSON string it would be a different grammar.
    fn custom(&mut self, at: usize, tool: &Value) -> Result<(), Refusal> {
        let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
        if let Some(grammar) = tool["format"]["definition"].as_str() {
            let syntax = tool["format"]["syntax"].as_str().unwrap_or("lark");
            description += &format!("\n\n`{INPUT}` must follow this grammar ({syntax}):\n{grammar}");
        }
        let parameters = json!({"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT],
            "additionalProperties": false});
        let shown = json!({"name": tool["name"], "description": description, "parameters": parameters});
        let shown = shown.as_object().cloned().unwrap_or_default();
        let function = function_of(at, &shown, "parameters", false)?;
        self.faces.insert(function.name.clone(), Face::Custom);
        self.tools.push((function, in_chats_form(&shown)));
        Ok(())
    }
}

/// Converts a tool to the form of chat completions, which templates expect.
fn in_chats_form(tool: &Map<String, Value>) -> Value {
    let mut function = Map::new();
    for name in ["name", "description", "parameters"] {
        function.extend(
            tool.get(name).filter(|value| !value.is_null()).map(|value| (name.to_owned(), value.clone())),
        );
    }
    json!({"type": "function", "function": function})
}
