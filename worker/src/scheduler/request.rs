//! What goes into the scheduler and what comes out.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::BlockHash;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;

use crate::TokenId;
use crate::kv_cache::CacheScope;

/// A request inside this worker; its owner draws it, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

/// A checked request. The scheduler trusts it: lengths and ids were compared with the model's at the edge.
#[derive(Debug, Clone)]
pub struct NewRequest {
    /// Unique among those that run or wait.
    pub key: RequestKey,
    /// At least one token, and room for another below `max_model_len`.
    pub prompt: Vec<TokenId>,
    /// How tokens are drawn.
    pub params: Arc<SamplingParams>,
    /// At least one, their indices distinct.
    pub samples: Vec<NewSample>,
    /// Whose cached prefixes it may use.
    pub scope: CacheScope,
    /// Lower runs first.
    pub priority: i32,
    /// Orders equal priorities; `None` comes last.
    pub deadline: Option<Timestamp>,
}

/// One sample to produce, from its beginning or from where another worker was cut off.
#[derive(Debug, Clone, Default)]
pub struct NewSample {
    /// Which of the request's samples.
    pub index: u32,
    /// Output tokens the client has; computed again, not reported again.
    pub delivered: Vec<TokenId>,
}

/// A request that cannot be taken now or ever.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many wait.
    #[error("{waiting} sequences wait, the limit is {limit}; retry elsewhere or in {} ms", RETRY_AFTER.as_millis())]
    QueueFull {
        /// Sequences that wait.
        waiting: u32,
        /// `max_num_queued_reqs`.
        limit: u32,
    },
    /// More samples than ever run at once.
    #[error("{got} samples of one prompt start together, this worker runs {limit} sequences; lower n")]
    TooManySamples {
        /// Samples without delivered tokens.
        got: u32,
        /// `max_num_seqs`.
        limit: u32,
    },
}

/// What [`Refusal::QueueFull`] suggests: about the time in which a queue of this size moves.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a sample waits for beside the steps, before its next rows are planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The mask of the token at `position`: which tokens may be drawn there.
    Mask {
        /// Absolute position.
        position: u32,
    },
    /// Keys and values of its blocks, loaded from elsewhere.
    Loading,
}

/// What became of a submitted request.
#[derive(Debug)]
pub struct Accepted {
    /// Leading blocks of the prompt that were cached when it came.
    pub cached_blocks: u32,
    /// Hashes of the full prompt blocks after those: about to be cached.
    pub uncached_hashes: Vec<BlockHash>,
    /// Samples that end without a draw: their delivered tokens are all they may have.
    pub events: Vec<Event>,
}

/// What happened to a request in one step.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A sequence of it runs: so many prompt tokens came from the cache. The request's first one counts; it comes
    /// before anything else.
    Started {
        /// Whose.
        request: RequestKey,
        /// Prompt tokens not computed again.
        cached_tokens: u32,
    },
    /// Prompt tokens were scored.
    PromptScored {
        /// Whose.
        request: RequestKey,
        /// Position of the first.
        from: u32,
        /// One for each position from there.
        scores: Vec<TokenLogprobs>,
    },
    /// A token was drawn.
    Token {
        /// Whose.
        request: RequestKey,
        /// Which sample.
        sample: u32,
        /// Its absolute position.
        position: u32,
        /// The token.
        token: TokenId,
        /// When asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// A sample ended; each does so exactly once unless the request is cancelled.
    Finished {
        /// Whose.
        request: RequestKey,
        /// Which sample.
        sample: u32,
        /// The position after its last token.
        position: u32,
        /// Why.
        reason: FinishReason,
    },
}

impl Event {
    /// Whose event it is.
    pub fn request(&self) -> RequestKey {
        match *self {
            Self::Started { request, .. }
            | Self::PromptScored { request, .. }
            | Self::Token { request, .. }
            | Self::Finished { request, .. } => request,
        }
    }
}
