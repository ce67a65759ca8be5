//! skein.v1 messages to and from the router's own types.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value, json};
use skein_grammar::Source;
use skein_proto::TokenId;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::v1;
use skein_proto::version::Version;
use skein_text::formats::Piece;
use skein_text::formats::tools::{Choice, ToolUse};
use skein_text::token_bytes::TokenBytes;

use crate::api::answer::choices::CallIds;
use crate::api::fields::tools::{self, Offered, function_of};
use crate::refusal::Refusal;
use crate::request::{Constraint, Draft, Journey, Prompt};
use crate::text::remainder::Received;
use crate::text::text_stream::{StopCause, TextFinish, Usage};

/// Converts a request for the validator.
pub fn draft(request: v1::GenerateRequest, timeout: Option<Duration>) -> Result<Draft, Refusal> {
    let mut tools = ToolUse::default();
    let prompt = match request.prompt {
        None => return Err(Refusal::invalid("prompt", "prompt is required: text, token_ids or chat.")),
        Some(v1::generate_request::Prompt::Text(text)) => Prompt::Text(text),
        Some(v1::generate_request::Prompt::TokenIds(tokens)) => {
            Prompt::Tokens(tokens.ids.into_iter().map(i64::from).collect())
        }
        Some(v1::generate_request::Prompt::Chat(conversation)) => {
            let (prompt, offered) = chat(conversation)?;
            tools = offered;
            prompt
        }
    };
    Ok(Draft {
        version: begun_on(&request.resume_from)?,
        is_resumed: !request.resume_from.is_empty(),
        tools,
        constraint: given(request.json_schema).map(|schema| constraint(&schema)).transpose()?,
        model: given(request.model),
        prompt,
        sampling: request.sampling.unwrap_or_default().into(),
        request_id: given(request.request_id).map(Into::into),
        cache_salt: request.cache_salt,
        priority: Some(i64::from(request.priority)).filter(|priority| *priority != 0),
        timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)),
        ..Draft::default()
    })
}

/// Version of the model that the client's part is from.
fn begun_on(received: &[v1::Received]) -> Result<Version, Refusal> {
    received.iter().map(|received| Version(received.model_version)).try_fold(Version::UNKNOWN, |one, other| {
        let message = format!(
            "resume_from names parts of versions {one} and {other} of the model; an answer is from one version."
        );
        if one.fits(other) { Ok(one.or(other)) } else { Err(Refusal::invalid("resume_from", message)) }
    })
}

/// Constraint from a JSON schema.
fn constraint(schema: &str) -> Result<Constraint, Refusal> {
    let field = "json_schema";
    let refuse = |reason: String| Refusal::invalid(field, format!("{field}: {reason}."));
    let schema =
        serde_json::from_str(schema).map_err(|error| refuse(format!("the text is not JSON: {error}")))?;
    let source = Source::json_schema(&schema).map_err(|refused| refuse(refused.to_string()))?;
    Ok(Constraint { source, field })
}

/// Converts a conversation and its tools for the chat template.
pub fn chat(chat: v1::Chat) -> Result<(Prompt, ToolUse), Refusal> {
    let Offered { tools, shown } = tools(&chat)?;
    let mut template_kwargs = object("template_arguments", &chat.template_arguments)?;
    if !shown.is_empty() {
        template_kwargs.insert("tools".to_owned(), shown.into());
    }
    let prompt = Prompt::Chat {
        messages: chat.messages.into_iter().map(message).collect(),
        add_generation_prompt: chat.add_generation_prompt.unwrap_or(true),
        continue_final_message: false,
        template_kwargs,
    };
    Ok((prompt, tools))
}

fn message(message: v1::ChatMessage) -> Value {
    let mut value = json!({"role": message.role, "content": message.content});
    let call = |call: v1::ToolCall| json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}});
    if !message.tool_calls.is_empty() {
        value["tool_calls"] = message.tool_calls.into_iter().map(call).collect();
    }
    if !message.tool_call_id.is_empty() {
        value["tool_call_id"] = message.tool_call_id.into();
    }
    if !message.reasoning.is_empty() {
        value["reasoning_content"] = message.reasoning.into();
    }
    value
}

fn tools(chat: &v1::Chat) -> Result<Offered, Refusal> {
    let list = chat.tools.iter().map(|tool| {
        let mut function = json!({"name": tool.name});
        if !tool.description.is_empty() {
            function["description"] = tool.description.as_str().into();
        }
        if !tool.parameters.is_empty() {
            function["parameters"] = object("tools", &tool.parameters)?.into();
        }
        Ok::<_, Refusal>((function, tool.strict))
    });
    let list = list.collect::<Result<Vec<_>, Refusal>>()?;
    let fields = list.iter().map(|(function, strict)| (function.as_object(), *strict)).enumerate();
    let functions = fields.map(|(at, (function, strict))| {
        function_of(at, function.unwrap_or(&Map::new()), "parameters", strict)
    });
    let functions = functions.collect::<Result<Vec<_>, Refusal>>()?;
    let choice = match chat.tool_choice.as_str() {
        "" => None,
        word => Some(tools::word(word).unwrap_or_else(|| Choice::Named(word.to_owned())).into()),
    };
    let shown =
        list.into_iter().map(|(function, _)| json!({"type": "function", "function": function})).collect();
    tools::checked(functions, shown, choice, chat.parallel_tool_calls.unwrap_or(true))
}

/// JSON object from a string; an empty string is an empty object.
fn object(field: &'static str, text: &str) -> Result<Map<String, Value>, Refusal> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    let refuse =
        |error| Refusal::invalid(field, format!("{field} must be a JSON object in a string: {error}."));
    serde_json::from_str(text).map_err(refuse)
}

/// Converts pieces of an answer to messages.
pub fn parts(pieces: Vec<Piece>, sample: usize, ids: &CallIds) -> Vec<v1::Part> {
    let part = |piece| match piece {
        Piece::Content(text) => Some(v1::part::Part::Content(text)),
        Piece::Reasoning(text) => Some(v1::part::Part::Reasoning(text)),
        Piece::Call { index, name } => {
            let id = ids.id(sample, index, &name);
            Some(v1::part::Part::Call(v1::CallBegin { index, id, name }))
        }
        Piece::Arguments { index, json } => {
            Some(v1::part::Part::Arguments(v1::CallArguments { index, json }))
        }
        Piece::CallEnd { .. } => None,
    };
    pieces.into_iter().filter_map(part).map(|part| v1::Part { part: Some(part) }).collect()
}

/// Protobuf strings cannot be absent; an empty one counts as absent.
pub fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Adds each token's text to its log-probabilities.
pub fn logprobs(bytes: &TokenBytes, logprobs: &[TokenLogprobs]) -> Vec<v1::TokenLogprob> {
    let text = |token: TokenId| String::from_utf8_lossy(bytes.get(token)).into_owned();
    let top = |(token, logprob): &(TokenId, f32)| v1::TopLogprob {
        token_id: *token,
        token: text(*token),
        logprob: *logprob,
    };
    let one = |at: &TokenLogprobs| v1::TokenLogprob {
        token_id: at.token,
        token: text(at.token),
        logprob: at.logprob,
        top: at.top.iter().map(top).collect(),
    };
    logprobs.iter().map(one).collect()
}

/// The finish of a sample for the wire.
pub fn finish(finish: &TextFinish, has_calls: bool) -> v1::Finish {
    let (stop_string, stop_token_id) = match finish {
        TextFinish::Stop(StopCause::Text(text)) => (Some(text.clone()), None),
        TextFinish::Stop(StopCause::Token(token)) => (None, Some(*token)),
        TextFinish::Stop(StopCause::End(token)) => (None, *token),
        TextFinish::Length | TextFinish::Abort => (None, None),
    };
    let has_ended = matches!(finish, TextFinish::Stop(_));
    let reason = if has_calls && has_ended { "tool_calls" } else { finish.reason() };
    v1::Finish { reason: reason.to_owned(), stop_string, stop_token_id }
}

/// How much the client has of each of `n` samples.
///
/// # Errors
/// [`Refusal::Invalid`] if `resume_from` comes without a request id, or names a sample twice or one out of
/// range.
pub fn received(request: &v1::GenerateRequest, n: u32) -> Result<Vec<Received>, Refusal> {
    let refused = |message: String| Err(Refusal::invalid("resume_from", message));
    if !request.resume_from.is_empty() && request.request_id.is_empty() {
        return refused("resume_from requires the request_id of the answer that it resumes.".to_owned());
    }
    let mut all = vec![Received::default(); n as usize];
    let mut named = HashSet::new();
    for &v1::Received { sample_index, tokens, text_bytes, finished, model_version: _ } in &request.resume_from
    {
        let Some(received) = all.get_mut(sample_index as usize).filter(|_| named.insert(sample_index)) else {
            return refused(format!("resume_from names sample {sample_index} of {n}, or names it twice."));
        };
        *received = Received { tokens, text_bytes, finished };
    }
    Ok(all)
}

/// The moves of a request for the wire.
pub fn receipt(journey: Journey) -> v1::Receipt {
    v1::Receipt { moves: journey.moves, resume_exact: journey.resume_exact }
}

/// Token counts for the wire.
pub fn usage(usage: Usage) -> v1::Usage {
    v1::Usage {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.cached_tokens,
    }
}

/// Parses a `grpc-timeout` value: up to 8 digits and a unit.
pub fn timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}
