//! A call for vectors or scores as an API has read it, before validation.

use std::sync::Arc;

use crate::request::Prompt;
use crate::request::tenant::Tenant;

/// Most texts or pairs in one call, as at OpenAI.
pub const MAX_INPUTS: usize = 2048;

/// A call. Numbers are wide and optional, so that the validator and not a parser reports what is out of
/// range.
#[derive(Debug, Clone, Default)]
pub struct PooledDraft {
    /// Model name; `None` = the served one.
    pub model: Option<String>,
    /// The client's own request id.
    pub request_id: Option<Arc<str>>,
    /// What vectors are wanted of.
    pub inputs: Vec<PooledInput>,
    /// Field of the API that holds them, for errors.
    pub param: &'static str,
    /// Whether the tokenizer adds its own tokens to texts; default true.
    pub add_special_tokens: Option<bool>,
    /// How long texts are cut; absent = they are refused.
    pub truncation: Option<PooledTruncation>,
    /// Requests with different salts share no prefix cache.
    pub cache_salt: String,
    /// Lower values run first; `None` = that of the key, else 0.
    pub priority: Option<i64>,
    /// Time limit, milliseconds.
    pub timeout_ms: Option<u64>,
    /// Worker chosen by an endpoint picker.
    pub picked_worker: Option<Arc<str>>,
    /// Tenant of the API key.
    pub tenant: Tenant,
}

/// How a long text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PooledTruncation {
    /// Most tokens; -1 = as many as the model takes.
    pub tokens: i64,
    /// Whether the beginning is kept; `None` = as the model's tokenizer says.
    pub keeps_first: Option<bool>,
}

impl PooledTruncation {
    /// As many tokens as the model takes.
    pub const TO_FIT: Self = Self { tokens: -1, keeps_first: None };
}

/// What one vector is made of.
#[derive(Debug, Clone)]
pub enum PooledInput {
    /// A text, ids or a conversation.
    One(Prompt),
    /// A query and a document.
    Pair(PairInput),
}

/// A query and a document.
#[derive(Debug, Clone)]
pub struct PairInput {
    /// The query.
    pub first: Arc<str>,
    /// The document.
    pub second: Arc<str>,
    /// What relevance means, for models that read it.
    pub instruction: Option<Arc<str>>,
}

impl PooledInput {
    /// Bytes of text to tokenise.
    pub fn bytes(&self) -> usize {
        match self {
            Self::One(prompt) => crate::app::work_bytes(prompt),
            Self::Pair(PairInput { first, second, .. }) => first.len() + second.len(),
        }
    }
}
