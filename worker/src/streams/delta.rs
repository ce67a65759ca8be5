//! What readers get.

use crate::TokenId;
use crate::sampling::TokenLogprobs;
use crate::scheduler::FinishReason;

/// Most bytes of output that wait for one reader: a million tokens, or some tens of thousands with log-probabilities.
pub const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// Consecutive tokens of one sample, or prompt scores, or an end, or several of these.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Which sample.
    pub sample: u32,
    /// Absolute position of the first token.
    pub from_position: u32,
    /// Its next tokens.
    pub tokens: Vec<TokenId>,
    /// One for each token when asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the sample's last delta.
    pub finish: Option<FinishReason>,
    /// Prompt tokens found in the cache; on the reader's first delta only.
    pub cached_tokens: Option<u32>,
    /// Prompt position of the first of `prompt_scores`.
    pub from_prompt_position: u32,
    /// Scores of consecutive prompt tokens.
    pub prompt_scores: Vec<TokenLogprobs>,
    /// This worker gives the request back unfinished. Alone in its delta, which is the last one.
    pub hand_back: bool,
}

/// Why a stream ended before its samples did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// The backend failed.
    #[error("the engine failed: {reason}; the request can be resumed on another worker")]
    Failed {
        /// What was seen.
        reason: String,
    },
    /// The engine was told to end.
    #[error("this worker has stopped; the request can be resumed on another worker")]
    Stopped,
    /// The reader left too much unread.
    #[error(
        "{bytes} bytes of output wait unread, the limit is {MAX_UNREAD_BYTES}; read faster or ask for less"
    )]
    SlowReader {
        /// Bytes that waited.
        bytes: usize,
    },
}
