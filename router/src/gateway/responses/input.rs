//! Converts a Responses request to a draft.

use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};

use crate::config::RouterConfig;
use crate::formats::tools::{Choice, Function};
use crate::gateway::conversation::Conversation;
use crate::gateway::fields::{Fields, wrong};
use crate::gateway::known_fields::take_unserved;
use crate::gateway::sampling_fields;
use crate::gateway::tool_fields::{self, function_of, not_a_function, offered};
use crate::refusal::Refusal;
use crate::request::Draft;

/// Parsed request of the Responses API.
pub struct ResponsesRequest {
    /// Draft of the generation request.
    pub draft: Draft,
    /// Request fields that the answer repeats.
    pub echo: Map<String, Value>,
    /// Whether to stream the answer.
    pub stream: bool,
    /// Names of ignored fields, for the response header.
    pub ignored: Option<HeaderValue>,
}

impl ResponsesRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// All faults of the body in one refusal.
    pub fn parse(
        mut fields: Fields,
        headers: &HeaderMap,
        id: &str,
        config: &RouterConfig,
    ) -> Result<Self, Refusal> {
        refuse_state(&mut fields);
        let mut echo = Map::new();
        let instructions = fields.string("instructions");
        echo.insert("instructions".to_owned(), instructions.clone().into());
        echo.insert("metadata".to_owned(), fields.take("metadata").unwrap_or_else(|| json!({})));
        text_format(&mut fields, &mut echo);
        let (mut draft, had) = sampling_fields::draft(&mut fields, headers, id, config)?;
        sampling_fields::refuse_resume(&mut fields, had.as_ref());
        draft.sampling = sampling_fields::sampling(&mut fields);
        draft.sampling.max_tokens = fields.i64("max_output_tokens");
        for (name, value) in [
            ("max_output_tokens", draft.sampling.max_tokens.into()),
            ("temperature", draft.sampling.temperature.into()),
            ("top_p", draft.sampling.top_p.into()),
        ] {
            echo.insert(name.to_owned(), value);
        }
        let effort = effort(&mut fields);
        echo.insert("reasoning".to_owned(), json!({"effort": effort, "summary": null}));
        draft.reasoning_effort = effort;
        let shown = tools(&mut fields, &mut draft, &mut echo);
        let mut kwargs = fields.object("chat_template_kwargs").unwrap_or_default();
        if !shown.is_empty() {
            kwargs.insert("tools".to_owned(), shown.into());
        }
        draft.prompt = conversation(&mut fields, instructions).prompt(kwargs);
        let stream = fields.bool("stream");
        fields.take("stream_options");
        truncation(&mut fields);
        take_unserved(&mut fields);
        Ok(Self { draft, echo, stream, ignored: fields.finish(config.refuse_unknown_fields)? })
    }
}

/// Refuses fields that need stored state.
fn refuse_state(fields: &mut Fields) {
    for (name, why) in [
        ("previous_response_id", "no answer is stored; send the whole conversation in input"),
        ("conversation", "no conversation is stored; send all of it in input"),
        ("prompt", "no prompts are stored; send instructions and input"),
        ("max_tool_calls", "the server runs no tools itself; leave it out"),
    ] {
        if fields.take(name).is_some() {
            fields.note(Refusal::invalid(name, format!("{name} is not supported: {why}.")));
        }
    }
    if fields.bool("background") {
        let message = "background is not supported: no answer is stored; read the stream.";
        fields.note(Refusal::invalid("background", message));
    }
    // `store` is accepted but ignored; the answer reports `store: false`.
    fields.take("store");
    for item in fields.strings("include") {
        // Reasoning is sent as plain text, and this API has no log-probabilities here.
        if item != "reasoning.encrypted_content" {
            let item: String = item.escape_default().take(60).collect();
            fields.note(Refusal::invalid("include", format!("include: `{item}` is not supported.")));
        }
    }
}

/// Reads `text.format`, which is chat's `response_format` with one nesting level less.
fn text_format(fields: &mut Fields, echo: &mut Map<String, Value>) {
    let mut text = fields.object("text").unwrap_or_default();
    if text.shift_remove("verbosity").is_some_and(|value| !value.is_null() && value != "medium") {
        fields.note(Refusal::invalid("text", "text.verbosity must be `medium`; others are not supported."));
    }
    let format = text.shift_remove("format").unwrap_or_else(|| json!({"type": "text"}));
    let chat = match format["type"].as_str() {
        Some("json_schema") => json!({"type": "json_schema", "json_schema": {"schema": format["schema"]}}),
        _ => format.clone(),
    };
    echo.insert("text".to_owned(), json!({"format": format}));
    fields.put("response_format", chat);
    text.into_iter().for_each(|(name, _)| fields.leave(format!("text.{name}")));
}

fn effort(fields: &mut Fields) -> Option<String> {
    let mut reasoning = fields.object("reasoning")?;
    // No model summarises here; the answer contains the full reasoning.
    reasoning.shift_remove("summary");
    reasoning.shift_remove("generate_summary");
    let effort = reasoning.shift_remove("effort").and_then(|effort| effort.as_str().map(str::to_owned));
    reasoning.into_iter().for_each(|(name, _)| fields.leave(format!("reasoning.{name}")));
    effort
}

/// Takes the tools; returns those for the chat template, in chat's format.
fn tools(fields: &mut Fields, draft: &mut Draft, echo: &mut Map<String, Value>) -> Vec<Value> {
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
    echo.insert("tools".to_owned(), list.clone().into());
    echo.insert("tool_choice".to_owned(), choice.clone().unwrap_or_else(|| "auto".into()));
    echo.insert("parallel_tool_calls".to_owned(), parallel.into());
    let functions = list.iter().enumerate().map(|(at, tool)| function(at, tool)).collect();
    let functions: Vec<Function> = fields.value_of(functions);
    let choice = fields.value_of(tool_choice(choice.as_ref()));
    let shown = list.iter().map(shown).collect();
    let offered = fields.value_of(offered(functions, shown, choice, parallel));
    draft.tools = offered.tools;
    offered.shown
}

/// A function is strict only with `strict: true`. OpenAI makes the others strict as well, by rewriting their
/// schemas; this server does not.
fn function(at: usize, tool: &Value) -> Result<Function, Refusal> {
    match tool.as_object().filter(|tool| tool.get("type").is_some_and(|kind| kind == "function")) {
        Some(function) => {
            let strict = function.get("strict").is_some_and(|strict| *strict == true);
            function_of(at, function, "parameters", strict)
        }
        None => Err(not_a_function(at, &tool["type"])),
    }
}

/// A tool in chat's format, which templates expect.
fn shown(tool: &Value) -> Value {
    let mut function = Map::new();
    for name in ["name", "description", "parameters"] {
        function.extend(
            tool.get(name).filter(|value| !value.is_null()).map(|value| (name.to_owned(), value.clone())),
        );
    }
    json!({"type": "function", "function": function})
}

fn tool_choice(choice: Option<&Value>) -> Result<Option<Choice>, Refusal> {
    let Some(choice) = choice else { return Ok(None) };
    if let Some(choice) = choice.as_str().and_then(tool_fields::word) {
        return Ok(Some(choice));
    }
    tool_fields::named((choice["type"] == "function").then(|| choice["name"].as_str()).flatten())
}

/// Messages of `input`, after the instructions.
fn conversation(fields: &mut Fields, instructions: Option<String>) -> Conversation {
    let mut conversation = Conversation::default();
    if let Some(instructions) = instructions {
        conversation.system(&instructions);
    }
    let items = match fields.take("input") {
        Some(Value::String(text)) => vec![json!({"role": "user", "content": text})],
        Some(Value::Array(items)) => items,
        Some(other) => {
            fields.note(wrong("input", "a string or a list of items", &other));
            return conversation;
        }
        None => {
            fields.note(Refusal::invalid("input", "input is required: a string or a list of items."));
            return conversation;
        }
    };
    for (at, item) in items.into_iter().enumerate() {
        if let Err(refusal) = add(&mut conversation, at, &item) {
            fields.note(refusal);
        }
    }
    conversation
}

fn add(conversation: &mut Conversation, at: usize, item: &Value) -> Result<(), Refusal> {
    let refuse = |what: String| Err(Refusal::invalid("input", format!("input[{at}]{what}")));
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let Some(role) = item["role"].as_str() else { return refuse(".role is required.".to_owned()) };
            match role {
                "system" | "developer" => match texts(&item["content"]) {
                    Some(text) => conversation.system(&text),
                    None => return refuse(".content must be text.".to_owned()),
                },
                "assistant" => match texts(&item["content"]) {
                    Some(text) => conversation.assistant_says(&text),
                    None => return refuse(".content must be text.".to_owned()),
                },
                role => conversation.says(role, item["content"].clone()),
            }
        }
        "function_call" => {
            let text = |name: &str| item[name].as_str().unwrap_or_default();
            if text("name").is_empty() || text("call_id").is_empty() {
                return refuse(" must have name and call_id.".to_owned());
            }
            conversation.calls(text("call_id"), text("name"), text("arguments"));
        }
        "function_call_output" => {
            let Some(text) = texts(&item["output"]) else {
                return refuse(".output must be text.".to_owned());
            };
            conversation.result(item["call_id"].as_str().unwrap_or_default(), &text);
        }
        "reasoning" => {
            let text = texts(&item["content"]).filter(|text| !text.is_empty());
            conversation.reasons(&text.or_else(|| texts(&item["summary"])).unwrap_or_default());
        }
        kind => {
            let kind: String = kind.escape_default().take(60).collect();
            return refuse(format!(".type `{kind}` is not supported; the server runs no tools itself."));
        }
    }
    Ok(())
}

/// Text of a string or of a list of text parts; `None` if it contains anything else.
fn texts(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Null => Some(String::new()),
        Value::Array(parts) => {
            let texts: Option<Vec<&str>> =
                parts.iter().map(|part| part["text"].as_str().or_else(|| part["refusal"].as_str())).collect();
            texts.map(|texts| texts.join("\n"))
        }
        _ => None,
    }
}

fn truncation(fields: &mut Fields) {
    if fields.string("truncation").is_some_and(|truncation| truncation != "disabled") {
        let message = "truncation must be `disabled`: items are not dropped; shorten the input.";
        fields.note(Refusal::invalid("truncation", message));
    }
}
