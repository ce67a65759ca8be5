//! The scheduler's inputs and outputs.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::BlockHash;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;

use crate::TokenId;
use crate::backend::LoadedAdapter;
use crate::kv_cache::CacheScope;

/// Identifies a request inside this worker; the engine counts them up and never reuses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

/// A validated request. The scheduler trusts it: the edge has compared lengths and ids with the model's.
#[derive(Debug, Clone)]
pub struct NewRequest {
    /// Unique among the requests that run or wait.
    pub key: RequestKey,
    /// At least one token, at most `max_model_len - 1`.
    pub prompt: Vec<TokenId>,
    /// Sampling parameters of all its samples.
    pub params: Arc<SamplingParams>,
    /// At least one, with distinct indices.
    pub samples: Vec<NewSample>,
    /// Cached prefixes that it may reuse.
    pub scope: CacheScope,
    /// Its adapter, which stays in memory until the request ends; `None` = the model alone.
    pub adapter: Option<Arc<LoadedAdapter>>,
    /// Requests of one client call have the same number and share the call's seats; `None` = no other
    /// requests.
    pub call: Option<u64>,
    /// Lower runs first.
    pub priority: i32,
    /// Orders equal priorities; `None` comes last.
    pub deadline: Option<Timestamp>,
}

impl NewRequest {
    /// A request for one sample, of default priority and with no deadline. The engine draws its key.
    pub fn of_one_sample(prompt: Vec<TokenId>, params: SamplingParams, scope: CacheScope) -> Self {
        Self {
            key: RequestKey(0),
            prompt,
            params: Arc::new(params),
            samples: vec![NewSample::default()],
            scope,
            adapter: None,
            call: None,
            priority: 0,
            deadline: None,
        }
    }
}

/// One sample to generate, from its start or from where another worker was cut off.
#[derive(Debug, Clone, Default)]
pub struct NewSample {
    /// Index within the request.
    pub index: u32,
    /// Output tokens that the client already has; recomputed but not reported again.
    pub delivered: Vec<TokenId>,
}

/// Why a request is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// As many sequences wait as may.
    #[error("{waiting} sequences wait, the limit is {limit}; retry elsewhere or in {} ms", RETRY_AFTER.as_millis())]
    QueueFull {
        /// Sequences waiting now.
        waiting: u32,
        /// The limit, `max_num_queued_reqs`.
        limit: u32,
    },
    /// More fresh samples than may run at once.
    #[error("{got} samples of one prompt start together, this worker runs {limit} sequences; lower n")]
    TooManySamples {
        /// Samples without delivered tokens.
        got: u32,
        /// The limit, `max_num_seqs`.
        limit: u32,
    },
}

/// Retry delay that [`NotAdmitted::QueueFull`] suggests: about the time in which a full queue moves.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Result of a successful submit.
#[derive(Debug)]
pub struct Accepted {
    /// Leading prompt blocks that were cached on arrival.
    pub cached_blocks: u32,
    /// Hashes of the full prompt blocks after those, which will be cached once computed.
    pub uncached_hashes: Vec<BlockHash>,
    /// Ends of samples whose delivered tokens are already all they may have.
    pub events: Vec<RequestEvent>,
}

/// Something that happened to a request in one step.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestEvent {
    /// The request's first sequence to run was admitted. Comes before its other events.
    Started {
        /// The request's key.
        request: RequestKey,
        /// Prompt tokens taken from the cache.
        cached_tokens: u32,
    },
    /// Prompt tokens were scored.
    PromptScored {
        /// The request's key.
        request: RequestKey,
        /// Position of the first score.
        from: u32,
        /// One score for each position from there on.
        scores: Vec<TokenLogprobs>,
    },
    /// A token was drawn.
    Token {
        /// The request's key.
        request: RequestKey,
        /// Index of the sample.
        sample: u32,
        /// Position in the sequence, prompt included.
        position: u32,
        /// The drawn token.
        token: TokenId,
        /// Present if the request asked for log-probabilities.
        logprobs: Option<TokenLogprobs>,
    },
    /// A stop token was drawn; its sample ends with it.
    StopScored {
        /// The request's key.
        request: RequestKey,
        /// Index of the sample.
        sample: u32,
        /// Those of the stop token.
        logprobs: TokenLogprobs,
    },
    /// The vector of the prompt was computed; its sample ends with it.
    Pooled {
        /// The request's key.
        request: RequestKey,
        /// Index of the sample.
        sample: u32,
        /// The vector, not normalised.
        vector: Vec<f32>,
    },
    /// A sample ended. Each does so exactly once, unless the request is cancelled.
    Finished {
        /// The request's key.
        request: RequestKey,
        /// Index of the sample.
        sample: u32,
        /// Position after its last token.
        position: u32,
        /// Why it ended.
        reason: FinishReason,
    },
}

/// Scheduling that readers do not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// A step computed a chunk of its prompt, or of tokens that it recomputes.
    Prefilled {
        /// Key of the request.
        request: RequestKey,
        /// Tokens in the chunk.
        rows: u32,
    },
    /// A sequence of the request was preempted.
    Preempted {
        /// Key of the request.
        request: RequestKey,
    },
    /// A step verified a draft of the request.
    Drafted {
        /// Key of the request.
        request: RequestKey,
        /// Number of draft tokens, at least one.
        drafted: u32,
        /// Number of them that were right.
        accepted: u32,
    },
}

impl RequestEvent {
    /// The request that the event belongs to.
    pub fn request(&self) -> RequestKey {
        match *self {
            Self::Started { request, .. }
            | Self::PromptScored { request, .. }
            | Self::Token { request, .. }
            | Self::StopScored { request, .. }
            | Self::Pooled { request, .. }
            | Self::Finished { request, .. } => request,
        }
    }
}
