//! Ollama's messages in the form that chat templates expect. Its calls have no ids and its results name their
//! function, so calls are numbered and a result belongs to the first call of its name without one.

use serde_json::{Map, Value, json};

use crate::refusal::Refusal;
use crate::request::Prompt;

/// A call in the history that has no result yet.
struct OpenCall {
    id: String,
    name: String,
}

/// A prompt of Ollama's messages. A last message of the assistant is continued, as at Ollama. `variables` are
/// for the template.
///
/// # Errors
/// For images, and for messages that are not objects.
pub fn prompt(messages: Vec<Value>, variables: Map<String, Value>) -> Result<Prompt, Refusal> {
    let (mut calls, mut open) = (0, Vec::new());
    let messages = messages.into_iter().enumerate();
    let messages: Vec<Value> = messages
        .map(|(at, message)| converted(at, message, &mut calls, &mut open))
        .collect::<Result<_, _>>()?;
    let is_begun = |last: &Value| last["role"] == "assistant" && last["tool_calls"].is_null();
    let continues = messages.last().is_some_and(is_begun);
    Ok(Prompt::Chat {
        messages,
        add_generation_prompt: !continues,
        continue_final_message: continues,
        template_kwargs: variables,
    })
}

fn converted(
    at: usize,
    message: Value,
    calls: &mut usize,
    open: &mut Vec<OpenCall>,
) -> Result<Value, Refusal> {
    let Value::Object(mut message) = message else {
        let text = format!("messages[{at}] must be an object with role and content.");
        return Err(Refusal::invalid("messages", text));
    };
    let images = message.shift_remove("images");
    if images.is_some_and(|images| images.as_array().is_none_or(|images| !images.is_empty())) {
        return Err(Refusal::invalid("images", "images are not supported: the model reads text only."));
    }
    if let Some(thinking) = message.shift_remove("thinking").filter(|text| !text.is_null()) {
        message.entry("reasoning_content").or_insert(thinking);
    }
    if message.get("tool_calls").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        message.shift_remove("tool_calls");
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        *calls += 1;
        number(call, *calls, open);
    }
    if message.get("role").is_some_and(|role| role == "tool") {
        answer(&mut message, open);
    }
    Ok(message.into())
}

/// Gives a call the id and type that templates read, if it has none.
fn number(call: &mut Value, number: usize, open: &mut Vec<OpenCall>) {
    let Some(call) = call.as_object_mut() else { return };
    // Mistral's templates take ids of nine letters and digits only.
    call.entry("id").or_insert_with(|| format!("call{number:05}").into());
    call.entry("type").or_insert_with(|| json!("function"));
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = text(call.get("function").and_then(|function| function.get("name")));
    open.push(OpenCall { id: text(call.get("id")), name });
}

/// Gives a result its function's name and the id of its call.
fn answer(message: &mut Map<String, Value>, open: &mut Vec<OpenCall>) {
    if let Some(name) = message.shift_remove("tool_name").filter(|name| !name.is_null()) {
        message.entry("name").or_insert(name);
    }
    let is_of = |call: &OpenCall| match (message.get("tool_call_id"), message.get("name")) {
        (Some(id), _) => call.id.as_str() == id,
        (None, Some(name)) => call.name.as_str() == name,
        (None, None) => true,
    };
    let Some(at) = open.iter().position(is_of) else { return };
    let OpenCall { id, name } = open.remove(at);
    message.entry("tool_call_id").or_insert(id.into());
    message.entry("name").or_insert(name.into());
}
