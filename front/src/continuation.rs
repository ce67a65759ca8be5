//! A request that continues an answer by its text, and the events of its stream as part of the first. Pure.
//!
//! Another worker tokenises the text again and draws from its own random numbers, so the rest of the answer
//! may differ from what the lost worker would have said.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::events;
use super::routes::Continues;
use super::transcript::Transcript;

/// Marks the place where another worker continues; clients skip comments.
pub const MARK: &str = ": skein-resumed by=text exact=false\n\n";

/// Fields whose effect depends on the whole answer, so that a second request cannot continue it.
const WHOLE: [(&str, &str); 16] = [
    ("logprobs", "log-probabilities were asked for"),
    ("top_logprobs", "log-probabilities were asked for"),
    ("prompt_logprobs", "log-probabilities were asked for"),
    ("return_token_ids", "token ids were asked for"),
    ("use_beam_search", "it searches several answers"),
    ("echo", "the prompt is echoed"),
    ("suffix", "it fills a gap"),
    ("response_format", "its form is constrained"),
    ("structured_outputs", "its form is constrained"),
    ("guided_json", "its form is constrained"),
    ("guided_regex", "its form is constrained"),
    ("guided_choice", "its form is constrained"),
    ("guided_grammar", "its form is constrained"),
    ("grammar", "its form is constrained"),
    ("json_schema", "its form is constrained"),
    ("min_tokens", "it has a least length"),
];

/// What is left of an answer.
#[derive(Debug, PartialEq)]
pub enum Rest {
    /// The body of a request for it.
    Request(Bytes),
    /// All tokens were delivered; the events that end the stream.
    Nothing(Bytes),
}

/// What is left of the answer to the request `body`.
///
/// # Errors
/// Why it cannot be continued.
pub fn rest(kind: Continues, body: &Bytes, transcript: &Transcript) -> Result<Rest, &'static str> {
    if let Some(why) = transcript.not_resumable {
        return Err(why);
    }
    let fields = serde_json::from_slice::<Map<String, Value>>(body);
    let mut fields = fields.map_err(|_| "the request is not a JSON object")?;
    check(&fields)?;
    if transcript.text.is_empty() {
        return Ok(Rest::Request(body.clone()));
    }
    if !take_delivered(&mut fields, transcript.events.into()) {
        return Ok(Rest::Nothing(end(kind, transcript)));
    }
    match kind {
        Continues::Chat => extend_messages(&mut fields, &transcript.text)?,
        Continues::Completion => extend_prompt(&mut fields, &transcript.text)?,
    }
    let body = serde_json::to_vec(&fields).map_err(|_| "the request cannot be written as JSON")?;
    Ok(Rest::Request(body.into()))
}

/// Takes what was delivered from the limits of tokens; false if nothing is left. Each event has one token or
/// more.
fn take_delivered(fields: &mut Map<String, Value>, delivered: u64) -> bool {
    let mut is_left = true;
    for limit in ["max_tokens", "max_completion_tokens"] {
        if let Some(most) = fields.get(limit).and_then(Value::as_u64) {
            is_left &= most > delivered;
            fields.insert(limit.to_owned(), json!(most.saturating_sub(delivered)));
        }
    }
    is_left
}

/// The events that end an answer at its limit of tokens.
fn end(kind: Continues, transcript: &Transcript) -> Bytes {
    let (object, choice) = match kind {
        Continues::Chat => {
            ("chat.completion.chunk", json!({"index": 0, "delta": {}, "finish_reason": "length"}))
        }
        Continues::Completion => {
            ("text_completion", json!({"index": 0, "text": "", "finish_reason": "length"}))
        }
    };
    let Transcript { id, model, created, .. } = transcript;
    let last = json!({"id": id, "object": object, "created": created, "model": model, "choices": [choice]});
    format!("data: {last}\n\ndata: [DONE]\n\n").into()
}

fn check(fields: &Map<String, Value>) -> Result<(), &'static str> {
    let is_off = |value: &Value| {
        matches!(value, Value::Null | Value::Bool(false)) || *value == json!({"type": "text"})
    };
    // 0 of `logprobs` asks for those of the tokens themselves.
    let is_zero = |name: &str, value: &Value| *value == 0 && ["min_tokens", "top_logprobs"].contains(&name);
    let given = |name: &str| fields.get(name).is_some_and(|value| !is_off(value) && !is_zero(name, value));
    match WHOLE.iter().find(|(name, _)| given(name)) {
        Some((_, why)) => Err(why),
        None if ["n", "best_of"]
            .iter()
            .any(|name| fields.get(*name).and_then(Value::as_u64).unwrap_or(1) > 1) =>
        {
            Err("it has several samples")
        }
        None => Ok(()),
    }
}

fn extend_messages(fields: &mut Map<String, Value>, text: &str) -> Result<(), &'static str> {
    let continues = fields.get("continue_final_message") == Some(&Value::Bool(true));
    let messages = fields.get_mut("messages").and_then(Value::as_array_mut);
    let messages = messages.ok_or("the request has no list of messages")?;
    if continues {
        match messages.last_mut().and_then(|last| last.get_mut("content")) {
            Some(Value::String(content)) => content.push_str(text),
            _ => return Err("its last message is not text"),
        }
    } else {
        messages.push(json!({"role": "assistant", "content": text}));
    }
    fields.insert("continue_final_message".to_owned(), Value::Bool(true));
    fields.insert("add_generation_prompt".to_owned(), Value::Bool(false));
    Ok(())
}

fn extend_prompt(fields: &mut Map<String, Value>, text: &str) -> Result<(), &'static str> {
    match fields.get_mut("prompt") {
        Some(Value::String(prompt)) => prompt.push_str(text),
        _ => return Err("its prompt is not one text"),
    }
    Ok(())
}

/// Makes the events of a continuation a part of the first stream.
#[derive(Debug)]
pub struct Edit {
    id: Option<String>,
}

impl Edit {
    /// For the stream with this id.
    pub fn new(id: Option<String>) -> Self {
        Self { id }
    }

    /// Gives all events the first stream's id, and leaves out the one that begins a message.
    pub fn apply(&self, whole: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(whole.len() + 64);
        for event in events::each(whole) {
            let chunk =
                events::data(event).and_then(|data| serde_json::from_slice::<Map<String, Value>>(data).ok());
            match chunk {
                None => out.extend_from_slice(event),
                Some(chunk) if begins(&chunk) => {}
                Some(mut chunk) => {
                    if let (Some(id), Some(its)) = (&self.id, chunk.get_mut("id")) {
                        *its = json!(id);
                    }
                    out.extend_from_slice(format!("data: {}\n\n", Value::Object(chunk)).as_bytes());
                }
            }
        }
        out.into()
    }
}

/// Whether a chunk only names the role of a new message.
fn begins(chunk: &Map<String, Value>) -> bool {
    let Some([choice]) = chunk.get("choices").and_then(Value::as_array).map(Vec::as_slice) else {
        return false;
    };
    let delta = &choice["delta"];
    let is_empty = |name: &str| delta[name].is_null() || delta[name] == "";
    delta.get("role").is_some()
        && is_empty("content")
        && is_empty("tool_calls")
        && choice["finish_reason"].is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continued(kind: Continues, fields: Value, text: &str) -> Result<Value, &'static str> {
        let transcript = Transcript { text: text.to_owned(), events: 3, ..Transcript::default() };
        rest(kind, &fields.to_string().into(), &transcript).map(|rest| match rest {
            Rest::Request(body) => serde_json::from_slice(&body).unwrap(),
            Rest::Nothing(end) => json!(String::from_utf8_lossy(&end)),
        })
    }

    #[test]
    fn a_chat_continues_in_its_last_message() {
        let user = json!({"role": "user", "content": "hi"});
        let request = json!({"model": "m", "messages": [user], "max_tokens": 10, "stream": true});
        let body = continued(Continues::Chat, request, "Hello").unwrap();
        let messages = json!([user, {"role": "assistant", "content": "Hello"}]);
        let expected = json!({"model": "m", "messages": messages, "max_tokens": 7, "stream": true,
            "continue_final_message": true, "add_generation_prompt": false});
        assert_eq!(body, expected);
        let begun =
            json!({"messages": [{"role": "assistant", "content": "He"}], "continue_final_message": true});
        let body = continued(Continues::Chat, begun, "llo").unwrap();
        assert_eq!(body["messages"], json!([{"role": "assistant", "content": "Hello"}]));
    }

    #[test]
    fn a_completion_continues_after_its_prompt() {
        let body = continued(Continues::Completion, json!({"prompt": "a", "max_tokens": 4}), "bc").unwrap();
        assert_eq!(body, json!({"prompt": "abc", "max_tokens": 1}));
        assert!(continued(Continues::Completion, json!({"prompt": [1, 2]}), "bc").is_err());
    }

    #[test]
    fn an_answer_with_all_its_tokens_ends_instead_of_being_continued() {
        for (kind, limit, most, is_over) in [
            (Continues::Completion, "max_tokens", 3, true),
            (Continues::Completion, "max_tokens", 2, true),
            (Continues::Completion, "max_tokens", 0, true),
            (Continues::Chat, "max_completion_tokens", 3, true),
            (Continues::Chat, "max_completion_tokens", 4, false),
        ] {
            let mut request = json!({"prompt": "a", "messages": [], "max_tokens": 1000});
            request[limit] = json!(most);
            let rest = continued(kind, request, "bcd").unwrap();
            let end = rest.as_str().unwrap_or_default();
            assert_eq!(end.ends_with("data: [DONE]\n\n"), is_over, "{limit} {most}: {rest}");
            assert_eq!(end.contains("\"finish_reason\":\"length\""), is_over, "{limit} {most}: {rest}");
        }
    }

    #[test]
    fn what_a_second_request_would_change_is_not_continued() {
        for field in [
            r#""n":2"#,
            r#""logprobs":true"#,
            r#""logprobs":3"#,
            r#""logprobs":0"#,
            r#""prompt_logprobs":0"#,
            r#""return_token_ids":true"#,
            r#""echo":true"#,
            r#""response_format":{"type":"json_object"}"#,
            r#""guided_regex":"a""#,
        ] {
            let fields: Value = serde_json::from_str(&format!(r#"{{"prompt":"a",{field}}}"#)).unwrap();
            assert!(continued(Continues::Completion, fields, "b").is_err(), "{field}");
        }
        let harmless = json!({"prompt": "a", "n": 1, "logprobs": null, "echo": false, "min_tokens": 0,
            "response_format": {"type": "text"}});
        assert!(continued(Continues::Completion, harmless, "b").is_ok());
        let transcript = Transcript { not_resumable: Some("why"), ..Transcript::default() };
        assert_eq!(rest(Continues::Chat, &"{}".into(), &transcript), Err("why"));
    }

    #[test]
    fn events_of_a_continuation_belong_to_the_first_stream() {
        let stream = concat!(
            "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            ": ping\n\n",
            "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n",
            "data: [DONE]\n\n",
        );
        let edited = Edit::new(Some("a".to_owned())).apply(stream.as_bytes());
        let expected = concat!(
            ": ping\n\n",
            "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n",
            "data: [DONE]\n\n",
        );
        assert_eq!(edited, expected);
    }
}
