//! The parts of an answer that completions and chat share.

use axum::response::Response;
use http::HeaderValue;
use serde_json::{Map, Value, json};
use skein_proto::TokenId;
use skein_proto::logprobs::TokenLogprobs;

use super::request_id::X_REQUEST_ID;
use crate::request::Journey;
use crate::text::text_stream::{StopCause, TextDelta, TextFinish, Usage};

/// Identifies the build, like OpenAI's field of this name.
pub const SYSTEM_FINGERPRINT: &str = concat!("skein-", env!("CARGO_PKG_VERSION"));

/// The fields that every object of one answer repeats.
#[derive(Debug, Clone)]
pub struct Heading {
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// `chat.completion` and the like.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served name.
    pub model: String,
}

impl Heading {
    /// An answer or a chunk with `choices`.
    pub fn object(&self, choices: Vec<Value>) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("id".to_owned(), self.id.as_str().into());
        object.insert("object".to_owned(), self.object.into());
        object.insert("created".to_owned(), self.created.into());
        object.insert("model".to_owned(), self.model.as_str().into());
        object.insert("system_fingerprint".to_owned(), SYSTEM_FINGERPRINT.into());
        object.insert("choices".to_owned(), choices.into());
        object
    }
}

/// One choice of a non-streaming answer, collected from its deltas.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Output text so far.
    pub text: String,
    /// Output tokens so far.
    pub tokens: Vec<TokenId>,
    /// One for each token if requested, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set by the last delta.
    pub finish: Option<TextFinish>,
}

impl Gathered {
    /// Appends the next delta.
    pub fn push(&mut self, delta: TextDelta) {
        self.text.push_str(&delta.text);
        self.tokens.extend(delta.tokens);
        self.logprobs.extend(delta.logprobs);
        self.finish = delta.finish.or(self.finish.take());
    }
}

/// The `usage` object.
pub fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

/// Adds the `skein` object if the request moved between workers. OpenAI's clients ignore fields they do not
/// know.
pub fn add_receipt(object: &mut Map<String, Value>, journey: Journey) {
    if journey.moves > 0 {
        let receipt = json!({"moves": journey.moves, "resume_exact": journey.resume_exact});
        object.insert("skein".to_owned(), receipt);
    }
}

/// The value of `finish_reason`; null while the choice runs.
pub fn finish_reason(finish: Option<&TextFinish>) -> Value {
    finish.map(TextFinish::reason).into()
}

/// vLLM's `stop_reason`: the stop string or stop token that ended the choice, else null.
pub fn stop_reason(finish: Option<&TextFinish>) -> Value {
    match finish {
        Some(TextFinish::Stop(StopCause::Text(text))) => text.as_str().into(),
        Some(TextFinish::Stop(StopCause::Token(token))) => (*token).into(),
        Some(TextFinish::Length) | None => Value::Null,
    }
}

/// Adds the headers of every answer to a generation: the request id, and the fields that were ignored.
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
