//! What a stream has said so far: all that a continuation needs. Pure.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::events;

/// Longest text that is remembered for a continuation.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The answer so far.
#[derive(Debug, Default)]
pub struct Transcript {
    /// Text of the only sample.
    pub text: String,
    /// Events with text; each has one token or more.
    pub events: u32,
    /// Id of the answer.
    pub id: Option<String>,
    /// Model that the answer names.
    pub model: Option<String>,
    /// When it was created, as JSON.
    pub created: Option<Value>,
    /// The stream has reached its end.
    pub ended: bool,
    /// Why no other worker can continue it.
    pub not_resumable: Option<&'static str>,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    created: Option<Value>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    error: Option<Error<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning: Option<Cow<'a, str>>,
    tool_calls: Option<&'a RawValue>,
    function_call: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Error<'a> {
    code: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
}

impl Error<'_> {
    /// Whether the engine failed, rather than the request.
    fn is_fault(&self) -> bool {
        let code = self.code.and_then(|code| code.get().trim_matches('"').parse::<u16>().ok());
        code.is_some_and(|code| code >= 500)
            || self.kind.as_ref().is_some_and(|kind| kind.to_ascii_lowercase().contains("internal"))
    }
}

impl Transcript {
    /// Reads whole events. Returns the position of an event in which the engine reports its own failure.
    pub fn read(&mut self, whole: &[u8]) -> Option<usize> {
        let mut at = 0;
        for event in events::each(whole) {
            if let Some(data) = events::data(event)
                && self.event(data)
            {
                return Some(at);
            }
            at += event.len();
        }
        None
    }

    /// Returns whether the event is the engine's failure.
    fn event(&mut self, data: &[u8]) -> bool {
        if data == b"[DONE]" {
            self.ended = true;
            return false;
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
            self.not_resumable = Some("an event is not in the format of the API");
            return false;
        };
        if let Some(error) = chunk.error {
            self.ended |= !error.is_fault();
            return error.is_fault();
        }
        if self.id.is_none() {
            self.id = chunk.id.map(Cow::into_owned);
            self.model = chunk.model.map(Cow::into_owned);
            self.created = chunk.created;
        }
        chunk.choices.iter().for_each(|choice| self.choice(choice));
        false
    }

    fn choice(&mut self, choice: &Choice<'_>) {
        let delta = choice.delta.as_ref();
        let is_some = |text: Option<&Cow<'_, str>>| text.is_some_and(|text| !text.is_empty());
        let reasons = delta.is_some_and(|delta| {
            is_some(delta.reasoning_content.as_ref()) || is_some(delta.reasoning.as_ref())
        });
        let calls = |delta: &Delta<'_>| {
            delta.function_call.is_some() || delta.tool_calls.is_some_and(|calls| calls.get() != "[]")
        };
        if choice.index > 0 {
            self.not_resumable = Some("it has several samples");
        } else if reasons {
            self.not_resumable = Some("it contains reasoning, which cannot be given back to a model as text");
        } else if delta.is_some_and(calls) {
            self.not_resumable = Some("it contains a tool call");
        }
        let text = choice.text.as_ref().or(delta.and_then(|delta| delta.content.as_ref()));
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.events += 1;
            if self.text.len() + text.len() <= MAX_TEXT_BYTES {
                self.text.push_str(text);
            } else {
                self.not_resumable = Some("it is too long");
            }
        }
        if self.not_resumable.is_some() {
            self.text = String::new(); // no use to anybody
        }
        self.ended |= choice.finish_reason.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &[&str]) -> (Transcript, Option<usize>) {
        let mut transcript = Transcript::default();
        let stream: String = events.iter().map(|data| format!("data: {data}\n\n")).collect();
        let failed = transcript.read(stream.as_bytes());
        (transcript, failed)
    }

    #[test]
    fn text_of_both_apis_is_collected() {
        let (chat, _) = read(&[
            r#"{"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"Hel\"lo"},"finish_reason":null}]}"#,
            r#"{"id":"c1","choices":[{"index":0,"delta":{"content":" \u00e9","tool_calls":[]}}]}"#,
        ]);
        assert_eq!((chat.text.as_str(), chat.events, chat.id.as_deref()), ("Hel\"lo \u{e9}", 2, Some("c1")));
        assert!(!chat.ended && chat.not_resumable.is_none());
        let (completion, _) =
            read(&[r#"{"choices":[{"text":"ab"}]}"#, r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#]);
        assert!(completion.text == "ab" && completion.ended);
        assert!(read(&["[DONE]"]).0.ended);
    }

    #[test]
    fn what_text_cannot_carry_is_not_resumable() {
        for delta in
            [r#"{"reasoning_content":"hm"}"#, r#"{"reasoning":"hm"}"#, r#"{"tool_calls":[{"index":0}]}"#]
        {
            let (transcript, _) = read(&[&format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#)]);
            assert!(transcript.not_resumable.is_some(), "{delta}");
        }
        assert!(read(&[r#"{"choices":[{"index":1,"text":"a"}]}"#]).0.not_resumable.is_some());
        assert!(read(&["{"]).0.not_resumable.is_some());
    }

    #[test]
    fn an_engines_own_failure_is_found_and_a_clients_is_the_end() {
        let good = r#"{"choices":[{"text":"ab"}]}"#;
        let (_, failed) =
            read(&[good, r#"{"error":{"message":"died","type":"InternalServerError","code":500}}"#]);
        assert_eq!(failed, Some(good.len() + "data: \n\n".len()));
        let (transcript, failed) = read(&[r#"{"error":{"type":"BadRequestError","code":400}}"#]);
        assert!(failed.is_none() && transcript.ended);
    }
}
