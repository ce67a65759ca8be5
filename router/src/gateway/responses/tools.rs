//! The tools of the Responses API. To the model each is a function of one name; the client sees its calls
//! as it offered them: as calls of a function, of a function in a namespace, or of a tool with free text.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::formats::tools::Function;
use crate::gateway::fields::Fields;
use crate::gateway::tool_fields::{self, Offered, chosen, function_of, not_a_function, offered};
use crate::refusal::Refusal;

/// Tools that OpenAI's servers run themselves. A model does without them, so they are left out and listed as
/// ignored: OpenAI's own clients offer them to every server.
const HOSTED: [&str; 5] =
    ["web_search", "web_search_preview", "image_generation", "code_interpreter", "file_search"];
/// The one argument of the function that stands for a tool with free text.
const INPUT: &str = "input";

/// How the client sees calls of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Face {
    /// As calls of a tool with free text.
    Custom,
    /// As calls of the function `name` in `namespace`.
    Within {
        /// Name of the namespace.
        namespace: String,
        /// The function's name in it.
        name: String,
    },
}

/// The functions that are not what they seem, by the name that the model has for them.
pub type Faces = HashMap<String, Face>;

/// Takes the tools and the choice among them; `echo` gets them as they came.
pub fn tools(fields: &mut Fields, echo: &mut Map<String, Value>) -> (Offered, Faces) {
    let list = tool_fields::list(fields);
    let choice = fields.take("tool_choice");
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
        // Codex's namespaces of MCP servers end so already.
        namespace if namespace.ends_with("__") => format!("{namespace}{name}"),
        namespace => format!("{namespace}__{name}"),
    }
}

/// The arguments of the function that stands for a tool with free text.
pub fn arguments_of(input: &str) -> String {
    json!({INPUT: input}).to_string()
}

/// The free text in such arguments; all of them if the model wrote something else.
pub fn input_of(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|parsed| parsed[INPUT].as_str());
    input.unwrap_or(arguments).to_owned()
}

#[derive(Default)]
struct Read {
    tools: Vec<(Function, Value)>,
    faces: Faces,
    /// Names of what is ignored.
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
            // Names of versions have a date at their end.
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

    /// A function is strict only if it says so. OpenAI makes the others strict, too, by rewriting their
    /// schemas; this server does not.
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

    /// A tool with free text is a function of one text to the model. Its grammar is told to the model, and
    /// not enforced: within a JSON string it would be another one.
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

/// A tool in chat's form, which templates know.
fn in_chats_form(tool: &Map<String, Value>) -> Value {
    let mut function = Map::new();
    for name in ["name", "description", "parameters"] {
        function.extend(
            tool.get(name).filter(|value| !value.is_null()).map(|value| (name.to_owned(), value.clone())),
        );
    }
    json!({"type": "function", "function": function})
}
