//! Converts a Messages request to a draft.

use http::HeaderMap;
use serde_json::{Map, Value, json};
use skein_text::formats::tools::{Choice, Function};

use crate::api::answer::single::request::{self, SingleRequest};
use crate::api::fields::conversation::Conversation;
use crate::api::fields::effort;
use crate::api::fields::listing::Kind;
use crate::api::fields::object::{Fields, wrong};
use crate::api::fields::tools::{self, Chosen, Offered, function_of, offered};
use crate::app::App;
use crate::refusal::Refusal;

/// Reads the fields of a body; `only_counted` for count_tokens. Also returns how much of its reasoning the
/// answer shows.
///
/// # Errors
/// If the body has faults; one refusal lists all of them.
pub fn parse(
    mut fields: Fields,
    headers: &HeaderMap,
    id: &str,
    app: &App,
    only_counted: bool,
) -> Result<(SingleRequest, Reasoning), Refusal> {
    let config = &app.config;
    let effort = output_config(&mut fields);
    fields.rename("stop_sequences", "stop");
    let mut draft = request::draft(&mut fields, headers, id, config, "max_tokens")?;
    draft.reasoning_effort = effort::readable(&mut fields, &app.text, "output_config.effort", effort);
    if draft.sampling.max_tokens.is_none() && !only_counted {
        let message = "max_tokens is required: the most tokens of the answer.";
        fields.note(Refusal::invalid("max_tokens", message));
    }
    let thinking = thinking(&mut fields);
    let mut variables = fields.object("chat_template_kwargs").unwrap_or_default();
    // Different templates use different names.
    for name in ["enable_thinking", "thinking"] {
        variables.entry(name).or_insert(thinking.is_on.into());
    }
    let offered = tools(&mut fields);
    let conversation = conversation(&mut fields);
    fields.take("anthropic_version", Kind::WithoutEffect);
    context_management(&mut fields);
    Ok((SingleRequest::new(draft, fields, conversation, offered, variables, config)?, thinking.shows))
}

/// Edits with which a client wants its prompt shortened. They are ignored: the template decides how much of
/// earlier reasoning the model sees, and a prompt that is too long is refused.
fn context_management(fields: &mut Fields) {
    let edits = fields
        .object_as("context_management", Kind::WithoutEffect)
        .and_then(|mut context| context.shift_remove("edits"));
    for edit in edits.as_ref().and_then(Value::as_array).into_iter().flatten() {
        let kind: String = edit["type"].as_str().unwrap_or_default().escape_default().take(40).collect();
        fields.leave(format!("context_management.{kind}"));
    }
}

/// Reads `output_config`, or the older `output_format`. Returns the amount of reasoning asked for, in
/// OpenAI's words, which templates know.
fn output_config(fields: &mut Fields) -> Option<String> {
    let mut config = fields.object_as("output_config", Kind::Shaped("OutputConfig")).unwrap_or_default();
    let effort = config.shift_remove("effort");
    let effort = effort.as_ref().and_then(Value::as_str).map(|effort| match effort {
        "xhigh" | "max" => "high".to_owned(),
        effort => effort.to_owned(),
    });
    let older = fields.take("output_format", Kind::Shaped("OutputFormat"));
    let format = config.shift_remove("format");
    if format.is_some() && older.is_some() {
        fields.leave("output_format".to_owned());
    }
    let format = format.or(older);
    config.into_iter().for_each(|(name, _)| fields.leave(format!("output_config.{name}")));
    if let Some(format) = format.filter(|format| !format.is_null()) {
        output_format(fields, &format);
    }
    effort
}

/// Reads the format of the answer: a JSON schema.
fn output_format(fields: &mut Fields, format: &Value) {
    if format["type"] != "json_schema" {
        let message = "output_format.type must be `json_schema`.";
        fields.note(Refusal::invalid("output_format", message));
        return;
    }
    let schema = format["schema"].clone();
    fields.put("response_format", json!({"type": "json_schema", "json_schema": {"schema": schema}}));
}

/// What `thinking` asks for.
struct Thinking {
    /// Whether the model should reason.
    is_on: bool,
    shows: Reasoning,
}

/// How much of its reasoning an answer shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// No block.
    None,
    /// Blocks without their text.
    Omitted,
    /// Blocks with their text.
    Shown,
}

/// Reads `thinking`. The default is not to reason, as at Anthropic.
fn thinking(fields: &mut Fields) -> Thinking {
    let off = Thinking { is_on: false, shows: Reasoning::None };
    let Some(thinking) = fields.object_as("thinking", Kind::Shaped("Thinking")) else { return off };
    match thinking.get("type").and_then(Value::as_str) {
        // The token budget is ignored: `max_tokens` limits the whole answer.
        Some("enabled" | "adaptive") => {
            let shows = match thinking.get("display").and_then(Value::as_str) {
                Some("omitted") => Reasoning::Omitted,
                None | Some("summarized") => Reasoning::Shown,
                Some(_) => {
                    let message = "thinking.display must be `summarized` or `omitted`.";
                    fields.note(Refusal::invalid("thinking", message));
                    Reasoning::Shown
                }
            };
            Thinking { is_on: true, shows }
        }
        // Templates have no switch for reasoning between calls alone.
        Some("between_tools") => {
            fields.leave("thinking.type=between_tools".to_owned());
            off
        }
        Some("disabled") => off,
        _ => {
            let message = "thinking.type must be `enabled`, `adaptive`, `between_tools` or `disabled`.";
            fields.note(Refusal::invalid("thinking", message));
            off
        }
    }
}

/// Beginnings of the types of tools that Anthropic's servers run.
const SERVER_TOOLS: [&str; 5] =
    ["web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset"];

/// Name of the unknown field for a tool that only Anthropic's servers run. A model can do without it.
fn server_tool(tool: &Value) -> Option<String> {
    let kind = tool["type"].as_str()?;
    let is_server = SERVER_TOOLS.iter().any(|begin| kind.starts_with(begin));
    is_server.then(|| format!("tools.{}", kind.escape_default().take(60).collect::<String>()))
}

fn tools(fields: &mut Fields) -> Offered {
    let mut list: Vec<(usize, Value)> = tools::list(fields, "MessagesTool").into_iter().enumerate().collect();
    // An answer without any of them would be taken for what they found.
    if let Some((_, tool)) = list.first().filter(|_| list.iter().all(|(_, tool)| server_tool(tool).is_some()))
    {
        let kind: String = tool["type"].as_str().unwrap_or_default().escape_default().take(60).collect();
        let message = format!(
            "tools[0].type `{kind}` is a tool that Anthropic's servers run, and no other is offered; this server runs none."
        );
        fields.note(Refusal::invalid("tools", message));
    }
    list.retain(|(_, tool)| server_tool(tool).map(|name| fields.leave(name)).is_none());
    let choice = fields.object_as("tool_choice", Kind::Shaped("MessagesToolChoice")).unwrap_or_default();
    let parallel = !choice.get("disable_parallel_tool_use").is_some_and(|flag| *flag == true);
    let tools = list.iter().map(|(at, tool)| Ok((function(*at, tool)?, shown(tool))));
    offered(fields, tools.collect(), tool_choice(&choice), parallel)
}

fn function(at: usize, tool: &Value) -> Result<Function, Refusal> {
    let is_custom = tool.get("type").is_none_or(|kind| kind == "custom" || kind.is_null());
    match tool.as_object().filter(|_| is_custom) {
        Some(function) => {
            let strict = function.get("strict").is_some_and(|strict| *strict == true);
            function_of(at, function, "input_schema", strict)
        }
        None => {
            let kind: String = tool["type"].as_str().unwrap_or("none").escape_default().take(40).collect();
            let message = format!(
                "tools[{at}].type must be `custom`, got `{kind}`, which only Anthropic's models know; describe it \
                 with an input_schema."
            );
            Err(Refusal::invalid("tools", message))
        }
    }
}

fn shown(tool: &Value) -> Value {
    let mut function = Map::new();
    for (name, ours) in [("name", "name"), ("description", "description"), ("input_schema", "parameters")] {
        function.extend(
            tool.get(name).filter(|value| !value.is_null()).map(|value| (ours.to_owned(), value.clone())),
        );
    }
    json!({"type": "function", "function": function})
}

fn tool_choice(choice: &Map<String, Value>) -> Result<Option<Chosen>, Refusal> {
    let name = choice.get("name").and_then(Value::as_str);
    match (choice.get("type").and_then(Value::as_str), name) {
        (None, _) => Ok(None),
        (Some("auto"), _) => Ok(Some(Choice::Auto.into())),
        (Some("any"), _) => Ok(Some(Choice::Required.into())),
        (Some("none"), _) => Ok(Some(Choice::None.into())),
        (Some("tool"), Some(name)) => Ok(Some(Choice::Named(name.to_owned()).into())),
        _ => {
            let message = "tool_choice.type must be `auto`, `any`, `none`, or `tool` with a name.";
            Err(Refusal::invalid("tool_choice", message))
        }
    }
}

fn conversation(fields: &mut Fields) -> Conversation {
    let mut conversation = Conversation::default();
    if let Some(system) = fields.take("system", Kind::Shaped("TextOrBlocks")) {
        match texts(&system) {
            Some(texts) => {
                texts.into_iter().filter(|text| !is_volatile(text)).for_each(|text| conversation.system(text))
            }
            None => fields.note(wrong("system", "a string or a list of text blocks", &system)),
        }
    }
    if !fields.has("messages") {
        fields.note(Refusal::invalid("messages", "messages is required: a list of messages."));
    }
    let messages =
        fields.list("messages", Kind::ListOf("MessagesMessage"), "a list of messages").unwrap_or_default();
    request::converse(fields, &mut conversation, &messages, add);
    continue_last(fields, &mut conversation, &messages);
    conversation
}

/// A last message of the assistant is the beginning of the answer, unless it calls: then its result is due.
fn continue_last(fields: &mut Fields, conversation: &mut Conversation, messages: &[Value]) {
    let Some(last) = messages.last().filter(|last| last["role"] == "assistant") else { return };
    if last["content"].as_array().is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_use"))
    {
        let at = messages.len() - 1;
        let message = format!("messages[{at}] calls a tool: a message with its tool_result must follow.");
        fields.note(Refusal::invalid("messages", message));
    }
    conversation.continue_assistant();
}

/// A block by which Anthropic's clients identify their requests. It differs in every request and has no
/// meaning for the model; in the prompt it would make every prefix miss the cache.
fn is_volatile(text: &str) -> bool {
    text.starts_with("x-anthropic-billing-header:")
}

/// Texts of a string or of a list of text blocks.
fn texts(content: &Value) -> Option<Vec<&str>> {
    match content {
        Value::String(text) => Some(vec![text]),
        Value::Array(blocks) => {
            blocks.iter().map(|block| block["text"].as_str().filter(|_| block["type"] == "text")).collect()
        }
        Value::Null => Some(Vec::new()),
        _ => None,
    }
}

/// Content of a tool's result that is no text.
enum Unread {
    /// Neither a string nor a list.
    Content,
    /// The block of this number has this type.
    Block(usize, String),
}

impl Unread {
    /// The refusal of the block `number` of the message `at`, with the place in Anthropic's form.
    fn refusal(self, at: usize, number: usize) -> Refusal {
        let place = format!("messages.{at}.content.{number}.tool_result.content");
        let message = match self {
            Self::Content => format!("{place}: it must be a string or a list of blocks."),
            Self::Block(inner, kind) => format!("{place}.{inner}.{kind}: this model reads text only."),
        };
        Refusal::invalid("messages", message)
    }
}

/// Text of a block of a tool's result; `None` if it is no text.
fn text_of_block(block: &Value) -> Option<String> {
    let text = |name: &str| block[name].as_str();
    match text("type")? {
        "text" => text("text").map(str::to_owned),
        "tool_reference" => text("tool_name").map(|name| format!("The tool {name} is available.")),
        "search_result" => {
            let found = texts(&block["content"])?;
            Some(
                [text("title"), text("source")]
                    .into_iter()
                    .flatten()
                    .chain(found)
                    .collect::<Vec<_>>()
                    .join("\n"),
            )
        }
        "document" if block["source"]["type"] == "text" => {
            block["source"]["data"].as_str().map(str::to_owned)
        }
        // Clients send what a tool has returned in every later request: a refusal would end their session.
        kind @ ("image" | "document") => Some(format!("[{kind}: this model reads text only]")),
        _ => None,
    }
}

/// Text of a tool's result. A reference to a tool, which a search for tools returns, becomes its name: all
/// tools of the request are in the prompt.
fn result_text(content: &Value) -> Result<String, Unread> {
    let blocks = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Null => return Ok(String::new()),
        Value::Array(blocks) => blocks,
        _ => return Err(Unread::Content),
    };
    let text = |(inner, block): (usize, &Value)| {
        text_of_block(block).ok_or_else(|| {
            let kind = block["type"].as_str().unwrap_or("block");
            Unread::Block(inner, kind.escape_default().take(40).collect())
        })
    };
    let texts: Vec<String> = blocks.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

fn add(conversation: &mut Conversation, at: usize, message: &Value) -> Result<(), Refusal> {
    let refuse = |what: &str| Err(Refusal::invalid("messages", format!("messages[{at}]{what}")));
    let role = message["role"].as_str().unwrap_or_default();
    if !["user", "assistant", "system"].contains(&role) {
        return refuse(".role must be `user` or `assistant`.");
    }
    let blocks = match &message["content"] {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks.clone(),
        _ => return refuse(".content must be a string or a list of blocks."),
    };
    let mut said: Vec<String> = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        let text = |name: &str| block[name].as_str().unwrap_or_default();
        match (block["type"].as_str().unwrap_or_default(), role) {
            ("text", "assistant") => conversation.assistant_says(text("text")),
            ("text", _) => said.push(text("text").to_owned()),
            ("thinking", "assistant") => conversation.reasons(text("thinking")),
            // Encrypted by Anthropic and therefore unreadable here.
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let arguments =
                    if block["input"].is_object() { block["input"].to_string() } else { String::new() };
                conversation.calls(text("id"), text("name"), &arguments);
            }
            ("tool_result", "user") => {
                let result = result_text(&block["content"]).map_err(|unread| unread.refusal(at, number))?;
                conversation.result(text("tool_use_id"), &result);
            }
            (kind @ ("image" | "document"), "user") => {
                let place = format!("messages.{at}.content.{number}.{kind}");
                return Err(Refusal::invalid("messages", format!("{place}: this model reads text only.")));
            }
            (kind, _) => {
                let kind: String = kind.escape_default().take(40).collect();
                return refuse(&format!(
                    ".content[{number}]: a block of type `{kind}` is not supported here."
                ));
            }
        }
    }
    if !said.is_empty() {
        conversation.says(role, said.join("\n").into());
    }
    Ok(())
}
