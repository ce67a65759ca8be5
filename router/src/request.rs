//! A request on its way through the router: as the client meant it ([`Draft`]), and checked, in tokens
//! ([`TokenRequest`]). JSON and protobuf end before the first, text before the second.

use std::sync::Arc;

use skein_node::clock::Timestamp;
use skein_proto::TokenId;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::{SamplingOptions, SamplingParams};
use skein_proto::stream_key::StreamKey;

/// What a client asked for, from either API, not yet checked. Numbers are wide and optional so that the one
/// validator, and not a parser, says what is out of range.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Model name; `None` = the only one served.
    pub model: Option<String>,
    /// What to continue.
    pub prompt: Prompt,
    /// How to draw tokens.
    pub sampling: SamplingOptions,
    /// The client's own id for the request.
    pub request_id: Option<String>,
    /// Which prompt this is of a call that has several under one id.
    pub part: Option<usize>,
    /// Whether the tokenizer adds its own tokens (BOS) to a text; absent = it does.
    pub add_special_tokens: Option<bool>,
    /// Separates prefix caches.
    pub cache_salt: String,
    /// Lower runs first.
    pub priority: i64,
    /// How long the client waits at most.
    pub timeout_ms: Option<u64>,
}

/// The prompt, in one of the forms the APIs take.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Plain text; special tokens such as BOS are added unless the draft says no, and control tokens spelt in the text are recognised
    /// (a client that writes its own chat format relies on it; `Chat` protects against it).
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<i64>),
    /// A conversation for the model's chat template.
    Chat {
        /// Messages, each a JSON object with at least `role` and `content`.
        messages: Vec<serde_json::Value>,
        /// End with the opening of an assistant turn.
        add_generation_prompt: bool,
        /// Continue the last (assistant) message instead of opening a turn.
        continue_final_message: bool,
        /// Extra variables for the template; cannot override its own.
        template_kwargs: serde_json::Map<String, serde_json::Value>,
    },
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// A checked request in tokens: what admission, policy and dispatch see.
#[derive(Debug, Clone)]
pub struct TokenRequest {
    /// Unique; the client's own or a UUIDv7.
    pub id: String,
    /// Served name of the model.
    pub model: Arc<str>,
    /// Prompt tokens, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Parameters for the worker, all in range. Without a seed of the client's, one made of `id`: whoever resumes or repeats
    /// the request draws the same tokens.
    pub sampling: Arc<SamplingParams>,
    /// Samples to produce, 1..=16.
    pub n: u32,
    /// Mixed into the block hash.
    pub cache_salt: Arc<str>,
    /// Lower runs first, -100..=100.
    pub priority: i32,
    /// When the client stops waiting.
    pub deadline: Option<Timestamp>,
    /// The stream's name, when a gateway in front has named it; `None` = it follows from the request.
    pub stream_key: Option<StreamKey>,
    /// What the client has of the answer already; `None` = nothing.
    pub resume: Option<Arc<Resume>>,
}

impl TokenRequest {
    /// Asks for one sample after `prompt`, and for nothing that is optional.
    pub fn new(
        id: impl Into<String>,
        model: impl Into<Arc<str>>,
        prompt: impl Into<Arc<[TokenId]>>,
        sampling: SamplingParams,
    ) -> Self {
        Self {
            id: id.into(),
            model: model.into(),
            prompt: prompt.into(),
            sampling: Arc::new(sampling),
            n: 1,
            cache_salt: "".into(),
            priority: 0,
            deadline: None,
            stream_key: None,
            resume: None,
        }
    }
}

/// How far a client got with a request through somebody who is gone. What it has is never sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resume {
    /// The samples still wanted; those not named have ended, or are not wanted any more.
    pub samples: Vec<ResumeSample>,
    /// The client has all log-probabilities of the prompt, or wants none.
    pub prompt_logprobs_done: bool,
}

/// How far a client got with one sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResumeSample {
    /// Which sample, below `n`.
    pub index: u32,
    /// The output tokens it has, from the first on.
    pub delivered: Vec<TokenId>,
}

/// Tokens of one sample, exactly once and in order: dispatch has dropped repeats and healed holes.
#[derive(Debug, Clone, Default)]
pub struct TokenDelta {
    /// Which sample.
    pub sample_index: u32,
    /// Absolute position of `tokens[0]` (prompt tokens count).
    pub from_position: u32,
    /// New output tokens.
    pub tokens: Vec<TokenId>,
    /// One for each of `tokens` when asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the sample's last delta.
    pub finish: Option<FinishReason>,
    /// Prompt tokens that the first worker found cached; set once, on the request's first delta.
    pub cached_tokens: Option<u32>,
    /// For prompt positions 1.. in order, before the first output token, when asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
}

/// What a request went through that its client did not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Journey {
    /// Moves to another worker, or back to the same one.
    pub moves: u32,
    /// Every token is the one that an undisturbed run would have given. False once a worker went on from tokens of
    /// another one and one of the two does not promise equal bits.
    pub resume_exact: bool,
}

impl Default for Journey {
    fn default() -> Self {
        Self { moves: 0, resume_exact: true }
    }
}

/// Bounds that come from the workers, not from configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Most tokens a sequence may have, prompt and output together.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
}
