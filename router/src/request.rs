//! A request on its way through the router: as the client meant it ([`Draft`]), and checked, in tokens
//! ([`TokenRequest`]). JSON and protobuf end before the first, text before the second.

use std::sync::Arc;

use skein_node::clock::Timestamp;

/// A token id; text stays on this side of `dispatch`, tokens go through it.
pub type TokenId = u32;

/// What a client asked for, from either API, not yet checked. Numbers are wide and optional so that the one
/// validator, and not a parser, says what is out of range.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Model name; `None` = the only one served.
    pub model: Option<String>,
    /// What to continue.
    pub prompt: Prompt,
    /// How to draw tokens.
    pub sampling: DraftSampling,
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

/// Sampling as the client gave it. Absent = the model's generation_config.json, else neutral.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // named and ranged as in skein.v1.SamplingOptions
pub struct DraftSampling {
    pub max_tokens: Option<i64>,
    pub min_tokens: Option<i64>,
    pub n: Option<i64>,
    pub best_of: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub seed: Option<i64>,
    pub logit_bias: Vec<(i64, f64)>,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<i64>,
    pub include_stop_str_in_output: bool,
    pub ignore_eos: bool,
    pub logprobs: Option<i64>,
    pub prompt_logprobs: Option<i64>,
    pub skip_special_tokens: Option<bool>,
    pub spaces_between_special_tokens: Option<bool>,
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
    /// Parameters for the worker.
    pub sampling: Arc<Sampling>,
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

/// XXH3-128 of (client's request id, model, prompt, sampling, n, salt). Routers that were given the same request under
/// the same id agree on it, so one finds what another has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey(pub u128);

impl StreamKey {
    /// From the wire: 16 bytes, big-endian; `None` = it is no key.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
    }

    /// For the wire.
    pub fn to_wire(self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
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

/// Sampling parameters as the worker takes them, all in range. The seed is always set: a request that gave
/// none got one made of its id, so that whoever resumes or repeats it draws the same tokens.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // named and ranged as in skein.worker.v1.SamplingParams
pub struct Sampling {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: u32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub seed: u64,
    pub logit_bias: Vec<(TokenId, f32)>,
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub stop_token_ids: Vec<TokenId>,
    pub ignore_eos: bool,
    pub logprobs: Option<u32>,
    pub prompt_logprobs: Option<u32>,
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
    pub finish: Option<TokenFinish>,
    /// Prompt tokens that the first worker found cached; set once, on the request's first delta.
    pub cached_tokens: Option<u32>,
    /// For prompt positions 1.. in order, before the first output token, when asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands there.
    pub token: TokenId,
    /// Its natural-log probability in the raw distribution.
    pub logprob: f32,
    /// 1 = most probable.
    pub rank: u32,
    /// The best tokens, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// Why a sample ended, as the worker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFinish {
    /// A stop or end-of-sequence token (not among the tokens).
    Stop {
        /// Which one.
        token: Option<TokenId>,
    },
    /// `max_tokens` or the context's end.
    Length,
    /// The router ended it (a stop string was seen).
    Aborted,
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
