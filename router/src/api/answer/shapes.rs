//! Parts of an answer that completions and chat share.

use std::io::Write;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};
use skein_proto::TokenId;
use skein_proto::logprobs::TokenLogprobs;

use super::events::SseData;
use crate::api::http::request_id::X_REQUEST_ID;
use crate::request::Journey;
use crate::text::text_stream::{StopCause, TextDelta, TextFinish, Usage};

/// Identifies the build, like OpenAI's field of the same name.
pub const SYSTEM_FINGERPRINT: &str = concat!("skein-", env!("CARGO_PKG_VERSION"));

/// Fields that every object of an answer repeats.
#[derive(Debug, Clone)]
pub struct Heading {
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Value of the `object` field, such as `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name under which the model is served.
    pub model: Arc<str>,
}

impl Heading {
    /// Answer or chunk with `choices`.
    pub fn object(&self, choices: Vec<Value>) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("id".to_owned(), self.id.as_str().into());
        object.insert("object".to_owned(), self.object.into());
        object.insert("created".to_owned(), self.created.into());
        object.insert("model".to_owned(), (*self.model).into());
        object.insert("system_fingerprint".to_owned(), SYSTEM_FINGERPRINT.into());
        object.insert("choices".to_owned(), choices.into());
        object
    }
}

/// Writes chunks that carry only text, which make up most of a stream. Everything around the text is
/// constant, so it is serialised once.
#[derive(Debug)]
pub struct TextChunks {
    /// Chunk up to the index of the choice.
    before_index: String,
    /// Chunk from the index to the text.
    before_text: &'static str,
    /// Chunk after the text.
    after_text: String,
}

impl TextChunks {
    /// Chunks of an answer with `heading`. A choice is `{"index": 0`, `before_text`, the text, `after_text`;
    /// `usage_is_null` adds a null `usage` field, which precedes the usage chunk.
    pub fn new(heading: &Heading, before_text: &'static str, after_text: &str, usage_is_null: bool) -> Self {
        let head = Value::Object(heading.object(Vec::new())).to_string();
        let head = head.strip_suffix("]}").unwrap_or(&head);
        let usage = if usage_is_null { ",\"usage\":null" } else { "" };
        Self {
            before_index: format!("{head}{{\"index\":"),
            before_text,
            after_text: format!("{after_text}}}]{usage}}}"),
        }
    }

    /// Chunk with `text` of a choice.
    pub fn chunk(&self, index: usize, text: &str) -> SseData {
        let Self { before_index, before_text, after_text } = self;
        let fixed = before_index.len() + before_text.len() + after_text.len();
        let mut chunk = Vec::with_capacity(fixed + text.len() + 16);
        // Writing to memory and serialising a string cannot fail.
        let _ = write!(chunk, "{before_index}{index}{before_text}");
        let _ = serde_json::to_writer(&mut chunk, text);
        chunk.extend_from_slice(after_text.as_bytes());
        SseData::Written(String::from_utf8(chunk).unwrap_or_default())
    }
}

/// A choice of a non-streaming answer, collected from its deltas.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Output text so far.
    pub text: String,
    /// Where in `text` the control tokens begin that mark parts of the answer.
    pub control_at: Vec<usize>,
    /// Output tokens so far.
    pub tokens: Vec<TokenId>,
    /// One per token if requested, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set by the last delta.
    pub finish: Option<TextFinish>,
}

impl Gathered {
    /// Appends the next delta.
    pub fn push(&mut self, delta: TextDelta) {
        let before = self.text.len();
        self.control_at.extend(delta.control_at.iter().map(|at| before + at));
        // A short answer is one delta, which is taken as it is.
        if self.text.is_empty() {
            self.text = delta.text;
        } else {
            self.text.push_str(&delta.text);
        }
        if self.tokens.is_empty() {
            self.tokens = delta.tokens;
        } else {
            self.tokens.extend(delta.tokens);
        }
        self.logprobs.extend(delta.logprobs);
        self.finish = delta.finish.or(self.finish.take());
    }
}

/// The `usage` object of an answer.
pub fn usage(usage: Usage) -> Value {
    let mut object = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    });
    if let Some(reasoning_tokens) = usage.reasoning_tokens {
        object["completion_tokens_details"] = json!({"reasoning_tokens": reasoning_tokens});
    }
    object
}

/// Adds the `skein` object if the request moved between workers. OpenAI's clients ignore unknown fields.
pub fn add_receipt(object: &mut Map<String, Value>, journey: Journey) {
    if journey.moves > 0 {
        let receipt = json!({"moves": journey.moves, "resume_exact": journey.resume_exact});
        object.insert("skein".to_owned(), receipt);
    }
}

/// Value of `finish_reason`; null while the choice runs.
pub fn finish_reason(finish: Option<&TextFinish>) -> Value {
    finish.map(TextFinish::reason).into()
}

/// vLLM's `stop_reason`: the stop string or stop token of the request that ended the choice, else null.
pub fn stop_reason(finish: Option<&TextFinish>) -> Value {
    match finish {
        Some(TextFinish::Stop(StopCause::Text(text))) => text.as_str().into(),
        Some(TextFinish::Stop(StopCause::Token(token))) => (*token).into(),
        Some(TextFinish::Stop(StopCause::End(_)) | TextFinish::Length | TextFinish::Abort) | None => {
            Value::Null
        }
    }
}

/// A response of JSON text.
pub fn json_response(json: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response()
}

/// Adds the headers of every generation response: the request id and the ignored fields.
pub fn finish_response(mut response: Response, request_id: &str, ignored: Option<HeaderValue>) -> Response {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(X_REQUEST_ID, id);
    }
    if let Some(ignored) = ignored {
        headers.insert("x-ignored-params", ignored);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_chunk_equals_the_tree() {
        let heading = Heading { id: "a\"b".into(), object: "chunk", created: 7, model: "m\\n".into() };
        for text in ["", "plain", "\"quoted\"\n\u{1}\u{7f}\u{2028}😀</script>\\"] {
            for (usage_is_null, index) in [(false, 0), (true, 127)] {
                let choice = json!({"index": index, "delta": {"content": text}, "logprobs": null});
                let mut object = heading.object(vec![choice]);
                if usage_is_null {
                    object.insert("usage".to_owned(), Value::Null);
                }
                let before = ",\"delta\":{\"content\":";
                let chunks = TextChunks::new(&heading, before, "},\"logprobs\":null", usage_is_null);
                assert_eq!(chunks.chunk(index, text), SseData::Written(Value::Object(object).to_string()));
            }
        }
    }
}
