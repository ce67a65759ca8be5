//! A request inside the router: as the client sent it ([`Draft`]), and validated, in tokens
//! ([`TokenRequest`]). JSON and protobuf end before the first, text before the second.

mod stream_key;
pub mod tenant;

use std::sync::Arc;

use skein_choice::receipt::Receipts;
use skein_node::clock::Timestamp;
use skein_node::trace;
use skein_proto::TokenId;
use skein_proto::adapter::AdapterId;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::{SamplingOptions, SamplingParams};
use skein_proto::stream_key::StreamKey;
use skein_proto::version::Version;
use skein_text::formats::tools::ToolUse;
use skein_text::model_text::ChatPrompt;

use self::tenant::Tenant;

/// A request from either API, before validation. Numbers are wide and optional, so that the validator and not
/// a parser reports what is out of range.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Model name; `None` = the served one.
    pub model: Option<String>,
    /// Whether a `max_tokens` that does not fit beside the prompt means as many as fit; otherwise it is
    /// refused.
    pub cuts_max_tokens: bool,
    /// The prompt to continue.
    pub prompt: Prompt,
    /// Sampling parameters, not validated.
    pub sampling: SamplingOptions,
    /// The client's own request id.
    pub request_id: Option<Arc<str>>,
    /// Index of this prompt in a call with several prompts under one id.
    pub part: Option<usize>,
    /// Whether the tokenizer adds its own tokens (BOS) to a text; default true.
    pub add_special_tokens: Option<bool>,
    /// Grammar that constrains the answer.
    pub constraint: Option<Constraint>,
    /// Tools that the model may call.
    pub tools: ToolUse,
    /// Requested amount of reasoning; the chat template interprets it.
    pub reasoning_effort: Option<String>,
    /// How a long prompt is truncated; absent = it is refused.
    pub truncation: Option<Truncation>,
    /// Tenant of the API key; tenants share no ids, streams or prefix cache.
    pub tenant: Tenant,
    /// Requests with different salts share no prefix cache.
    pub cache_salt: String,
    /// Lower values run first; `None` = that of the key, else 0.
    pub priority: Option<i64>,
    /// Time limit, milliseconds.
    pub timeout_ms: Option<u64>,
    /// Worker chosen by an endpoint picker.
    pub picked_worker: Option<Arc<str>>,
    /// Version of the model that the client's part of the answer is from; unknown = it has no part.
    pub version: Version,
    /// Whether the client has a part of the answer, which the API does not send again.
    pub is_resumed: bool,
}

/// Grammar of an answer, not yet compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// Text of the grammar.
    pub source: skein_grammar::Source,
    /// Request field that set it, for errors.
    pub field: &'static str,
}

/// How a long prompt is truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Most tokens of the prompt; -1 = as many as fit beside `max_tokens`.
    pub tokens: i64,
    /// Keep the beginning of the prompt instead of its end.
    pub keep_first: bool,
}

/// The prompt, in one of the forms that the APIs accept.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Plain text. Special tokens such as BOS are added unless the draft says no. Control tokens spelled in
    /// the text are recognised: clients that write their own chat format rely on it, and `Chat` protects
    /// against it.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<i64>),
    /// A conversation for the model's chat template.
    Chat {
        /// Messages, each a JSON object with at least `role` and `content`.
        messages: Vec<serde_json::Value>,
        /// Whether to end with the start of an assistant turn.
        add_generation_prompt: bool,
        /// Whether to continue the last (assistant) message instead of starting a turn.
        continue_final_message: bool,
        /// Extra variables for the template; they cannot override its own.
        template_kwargs: serde_json::Map<String, serde_json::Value>,
    },
}

impl Prompt {
    /// The conversation; `None` for other kinds of prompts.
    pub fn as_chat(&self) -> Option<ChatPrompt<'_>> {
        match self {
            Self::Chat { messages, add_generation_prompt, continue_final_message, template_kwargs } => {
                Some(ChatPrompt {
                    messages,
                    add_generation_prompt: *add_generation_prompt,
                    continue_final_message: *continue_final_message,
                    template_kwargs,
                    kept_in: None,
                })
            }
            Self::Text(_) | Self::Tokens(_) => None,
        }
    }
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// A validated request in tokens: what admission, policy and dispatch see.
#[derive(Debug, Clone)]
pub struct TokenRequest {
    /// Unique within its tenant; the client's own id or a UUIDv7.
    pub id: Arc<str>,
    /// Served name of the model.
    pub model: Arc<str>,
    /// Its adapter; `None` = the model alone.
    pub adapter: Option<AdapterRef>,
    /// Prompt tokens, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Parameters for the worker, all in range. A missing seed is derived from `id`, so that a resumed or
    /// repeated request draws the same tokens.
    pub sampling: Arc<SamplingParams>,
    /// Number of samples, 1..=128.
    pub n: u32,
    /// Tenant, within which `id` is unique.
    pub tenant: Tenant,
    /// Position of this prompt in its call; a call counts once towards the requests of its key.
    pub part: u32,
    /// Number shared by the requests of one client call, which share the call's seats at a worker; 0 = no
    /// other requests.
    pub call: u64,
    /// Mixed into the block hashes; includes the tenant.
    pub cache_salt: Arc<str>,
    /// Lower values run first, -100..=100.
    pub priority: i32,
    /// When this router received it; `None` = when it is submitted.
    pub arrived: Option<Timestamp>,
    /// When the request times out; `None` = never.
    pub deadline: Option<Timestamp>,
    /// The stream's key if a gateway set it; `None` = derived from the request.
    pub stream_key: Option<StreamKey>,
    /// Whether the request waits while no worker is ready, if one was ready before. A gateway's request does
    /// not wait, because another router may have a worker.
    pub waits_for_worker: bool,
    /// How much of the answer the client already has; `None` = nothing.
    pub resume: Option<Arc<Resume>>,
    /// Whether its client has a part of the answer that the API leaves out, without `resume`.
    pub is_resumed: bool,
    /// Version of the model that it began on and goes on with; unknown = any.
    pub version: Version,
    /// Worker chosen by an endpoint picker, by its name in discovery. The request runs there first if that
    /// worker accepts requests.
    pub picked_worker: Option<Arc<str>>,
    /// Operation in OpenTelemetry's terms: `chat`, `text_completion`, `generate_content`, `embeddings`.
    pub operation: &'static str,
    /// Trace span of the request in this process.
    pub trace: trace::Request,
    /// Collects why workers were chosen, if the client asked.
    pub receipts: Option<Receipts>,
}

/// An adapter as a request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterRef {
    /// Name that answers show.
    pub name: Arc<str>,
    /// Hash of its files.
    pub id: AdapterId,
}

impl TokenRequest {
    /// Name that answers show.
    pub fn shown_model(&self) -> &Arc<str> {
        self.adapter.as_ref().map_or(&self.model, |adapter| &adapter.name)
    }

    /// A request for one sample after `prompt`, without any options.
    pub fn new(
        id: impl Into<Arc<str>>,
        model: impl Into<Arc<str>>,
        prompt: impl Into<Arc<[TokenId]>>,
        sampling: SamplingParams,
    ) -> Self {
        Self {
            id: id.into(),
            model: model.into(),
            adapter: None,
            prompt: prompt.into(),
            sampling: Arc::new(sampling),
            n: 1,
            tenant: Tenant::default(),
            part: 0,
            call: 0,
            cache_salt: "".into(),
            priority: 0,
            arrived: None,
            deadline: None,
            stream_key: None,
            waits_for_worker: true,
            resume: None,
            is_resumed: false,
            version: Version::UNKNOWN,
            picked_worker: None,
            operation: "generate_content",
            trace: trace::Request::default(),
            receipts: None,
        }
    }
}

/// How much of a request its client received before it was interrupted. None of it is sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resume {
    /// The unfinished samples; all others have ended or been aborted.
    pub samples: Vec<ResumeSample>,
    /// Whether the client has all prompt log-probabilities, or requested none.
    pub prompt_logprobs_done: bool,
}

/// How much of one sample its client received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResumeSample {
    /// Index of the sample, below `n`.
    pub index: u32,
    /// The output tokens received, from the first.
    pub delivered: Vec<TokenId>,
}

/// Tokens of one sample, exactly once and in order: dispatch has removed repeats and filled gaps.
#[derive(Debug, Clone, Default)]
pub struct TokenDelta {
    /// Which of the request's samples, from 0.
    pub sample_index: u32,
    /// Absolute position of `tokens[0]`, counting prompt tokens.
    pub from_position: u32,
    /// The new output tokens.
    pub tokens: Vec<TokenId>,
    /// One for each of `tokens` if requested, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the sample's last delta.
    pub finish: Option<FinishReason>,
    /// Prompt tokens that the first worker found cached; set once, on the request's first delta.
    pub cached_tokens: Option<u32>,
    /// For prompt positions from 1 on, in order and before the first output token, if requested.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// The vector of a pooled request, with `finish`; else empty. Neither cut nor normalised.
    pub pooled: Vec<f32>,
    /// With `finish` by a stop token, which is none of `tokens`: its log-probabilities, if requested.
    pub stop_logprobs: Option<Box<TokenLogprobs>>,
}

/// Moves of a request between workers, invisible to its client, and the version of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Journey {
    /// Moves to another worker, or back to the same one.
    pub moves: u32,
    /// Whether every token is the one that an undisturbed run would have generated. False once a worker
    /// continued from another one's tokens and one of the two does not promise identical bits.
    pub resume_exact: bool,
    /// Version that all tokens so far are from; unknown before the first.
    pub version: Version,
}

impl Default for Journey {
    fn default() -> Self {
        Self { moves: 0, resume_exact: true, version: Version::UNKNOWN }
    }
}
