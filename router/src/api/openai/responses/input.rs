//! Converts a Responses request to a draft.

use http::HeaderMap;
use serde_json::{Map, Value, json};

use super::asked::Asked;
use super::tools::{Faces, arguments_of, qualified, tools};
use crate::api::answer::single::request::{self, SingleRequest};
use crate::api::fields::conversation::Conversation;
use crate::api::fields::effort;
use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::api::openai::metadata::metadata;
use crate::app::App;
use crate::config::RequestLimits;
use crate::refusal::Refusal;
use crate::validate::check_logprobs;

/// Item of `include` that asks for the log-probabilities of the text.
const LOGPROBS: &str = "message.output_text.logprobs";

/// A parsed request, with the fields and tool types that its answer needs.
pub struct Parsed {
    /// The request as for any single-prompt API.
    pub request: SingleRequest,
    /// Fields that the answer repeats.
    pub echo: Map<String, Value>,
    /// The client's types of tools.
    pub faces: Faces,
}

impl Parsed {
    /// Reads the fields of a body; `asked` are those that were taken before, and `earlier` the items before
    /// its own.
    ///
    /// # Errors
    /// All faults of the body in one refusal.
    pub fn of(
        mut fields: Fields,
        asked: &Asked,
        earlier: &[Value],
        headers: &HeaderMap,
        id: &str,
        app: &App,
    ) -> Result<Self, Refusal> {
        let config = &app.config;
        refuse_unsupported(&mut fields);
        let logprobs = logprobs(&mut fields, &config.limits);
        let mut echo = Map::new();
        let instructions = fields.string("instructions");
        echo.insert("instructions".to_owned(), instructions.clone().into());
        echo.insert("metadata".to_owned(), metadata(&mut fields).into());
        text_format(&mut fields, &mut echo);
        let mut draft = request::draft(&mut fields, headers, id, config, "max_output_tokens")?;
        for (name, value) in [
            ("max_output_tokens", draft.sampling.max_tokens.into()),
            ("temperature", draft.sampling.temperature.into()),
            ("top_p", draft.sampling.top_p.into()),
            ("top_logprobs", logprobs.unwrap_or(0).into()),
        ] {
            echo.insert(name.to_owned(), value);
        }
        draft.sampling.logprobs = logprobs;
        let effort = asked_effort(&mut fields);
        draft.reasoning_effort = effort::readable(&mut fields, &app.text, "reasoning.effort", effort);
        echo.insert("reasoning".to_owned(), json!({"effort": draft.reasoning_effort, "summary": null}));
        let (offered, faces) = tools(&mut fields, &mut echo);
        let variables = fields.object("chat_template_kwargs").unwrap_or_default();
        let conversation = conversation(&mut fields, instructions, earlier, &asked.items);
        fields.take("stream_options", Kind::WithoutEffect);
        // Codex's description of itself.
        fields.take("client_metadata", Kind::WithoutEffect);
        truncation(&mut fields);
        let request = SingleRequest::new(draft, fields, conversation, offered, variables, config)?;
        Ok(Self { request, echo, faces })
    }
}

/// Refuses fields that need what is not there.
fn refuse_unsupported(fields: &mut Fields) {
    for (name, why) in [
        (
            "conversation",
            "conversations are no objects here as yet; name the last response in previous_response_id",
        ),
        ("prompt", "no prompts are stored; send instructions and input"),
        ("max_tool_calls", "the server runs no tools itself; leave it out"),
    ] {
        if fields.take_strange(name).is_some() {
            fields.note(Refusal::invalid(name, format!("{name} is not supported: {why}.")));
        }
    }
}

/// Most likely tokens to show beside each token of the text; `None` = no log-probabilities. The client asks
/// by
/// `include`, and by `top_logprobs`.
fn logprobs(fields: &mut Fields, limits: &RequestLimits) -> Option<i64> {
    let mut is_included = false;
    for item in fields.strings("include") {
        is_included |= item == LOGPROBS;
        // Reasoning is sent as plain text.
        if ![LOGPROBS, "reasoning.encrypted_content"].contains(&item.as_str()) {
            let item: String = item.escape_default().take(60).collect();
            fields.note(Refusal::invalid("include", format!("include: `{item}` is not supported.")));
        }
    }
    let top = fields.i64("top_logprobs");
    let top = fields.value_of(check_logprobs("top_logprobs", top, limits)).map(i64::from);
    if is_included { Some(top.unwrap_or(0)) } else { top.filter(|top| *top > 0) }
}

/// Reads `text.format`, which is chat's `response_format` with one nesting level less.
fn text_format(fields: &mut Fields, echo: &mut Map<String, Value>) {
    let mut text = fields.object_as("text", Kind::Shaped("ResponsesText")).unwrap_or_default();
    // A hint for OpenAI's own models; Codex sends it to every server.
    if let Some(verbosity) = text.shift_remove("verbosity").filter(|value| value.is_string()) {
        fields.leave(format!("text.verbosity={}", verbosity.as_str().unwrap_or_default()));
    }
    let format = text.shift_remove("format").unwrap_or_else(|| json!({"type": "text"}));
    let chat = match format["type"].as_str() {
        Some("json_schema") => {
            json!({"type": "json_schema", "json_schema": {"schema": format["schema"], "strict": format["strict"]}})
        }
        _ => format.clone(),
    };
    echo.insert("text".to_owned(), json!({"format": format}));
    fields.put("response_format", chat);
    text.into_iter().for_each(|(name, _)| fields.leave(format!("text.{name}")));
}

fn asked_effort(fields: &mut Fields) -> Option<String> {
    let mut reasoning = fields.object_as("reasoning", Kind::Shaped("Reasoning"))?;
    // No model summarises here; the answer contains the full reasoning.
    reasoning.shift_remove("summary");
    reasoning.shift_remove("generate_summary");
    let effort = reasoning.shift_remove("effort").and_then(|effort| effort.as_str().map(str::to_owned));
    reasoning.into_iter().for_each(|(name, _)| fields.leave(format!("reasoning.{name}")));
    effort
}

/// Conversation of the instructions, the `earlier` items and those of the request.
fn conversation(
    fields: &mut Fields,
    instructions: Option<String>,
    earlier: &[Value],
    items: &[Value],
) -> Conversation {
    let mut conversation = Conversation::default();
    if let Some(instructions) = instructions {
        conversation.system(&instructions);
    }
    for item in earlier {
        if let Err(refusal) = add(&mut conversation, 0, item) {
            let message =
                format!("previous_response_id: an item of the conversation cannot be read: {refusal}");
            fields.note(Refusal::invalid("previous_response_id", message));
        }
    }
    request::converse(fields, &mut conversation, items, add);
    conversation
}

fn add(conversation: &mut Conversation, at: usize, item: &Value) -> Result<(), Refusal> {
    let refuse = |what: String| Err(Refusal::invalid("input", format!("input[{at}]{what}")));
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let Some(role) = item["role"].as_str() else { return refuse(".role is required.".to_owned()) };
            match role {
                "system" | "developer" => match texts(&item["content"]) {
                    Some(text) if role == "system" => conversation.system(&text),
                    Some(text) => conversation.develops(&text),
                    None => return refuse(".content must be text.".to_owned()),
                },
                "assistant" => match texts(&item["content"]) {
                    Some(text) => conversation.assistant_says(&text),
                    None => return refuse(".content must be text.".to_owned()),
                },
                role => {
                    if let Some(kind) = unread_part(&item["content"]) {
                        return refuse(format!("{kind}: this model reads text only."));
                    }
                    conversation.says(role, item["content"].clone());
                }
            }
        }
        "function_call" => {
            let text = |name: &str| item[name].as_str().unwrap_or_default();
            if text("name").is_empty() || text("call_id").is_empty() {
                return refuse(" must have name and call_id.".to_owned());
            }
            let name = qualified(item["namespace"].as_str(), text("name"));
            conversation.calls(text("call_id"), &name, text("arguments"));
        }
        "custom_tool_call" => {
            let text = |name: &str| item[name].as_str().unwrap_or_default();
            if text("name").is_empty() || text("call_id").is_empty() {
                return refuse(" must have name and call_id.".to_owned());
            }
            let name = qualified(item["namespace"].as_str(), text("name"));
            conversation.calls(text("call_id"), &name, &arguments_of(text("input")));
        }
        "function_call_output" | "custom_tool_call_output" => {
            let Some(text) = output_text(&item["output"]) else {
                return refuse(".output must be a string or a list of parts.".to_owned());
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

/// Place and type of the first part of a message that is a picture, a file or a sound.
fn unread_part(content: &Value) -> Option<String> {
    let parts = content.as_array()?.iter().enumerate();
    let mut unread = parts.filter_map(|(at, part)| {
        let kind = part["type"].as_str().filter(|kind| UNREAD.contains(kind))?;
        Some(format!(".content[{at}] is `{kind}`"))
    });
    unread.next()
}

/// Types of parts that are no text.
const UNREAD: [&str; 3] = ["input_image", "input_file", "input_audio"];

/// Text of a tool's output. A sentence stands for a picture or a file: Codex 0.171.0 sends what its tool has
/// read in every later request, so that a refusal would end the session.
fn output_text(output: &Value) -> Option<String> {
    let Value::Array(parts) = output else { return texts(output) };
    let text = |part: &Value| match part["type"].as_str() {
        Some(kind) if UNREAD.contains(&kind) => Some(format!("[{kind}: this model reads text only]")),
        _ => part["text"].as_str().map(str::to_owned),
    };
    let texts: Option<Vec<String>> = parts.iter().map(text).collect();
    texts.map(|texts| texts.join("\n"))
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
