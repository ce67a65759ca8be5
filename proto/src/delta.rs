//! New output of a request.

use crate::finish::FinishReason;
use crate::logprobs::TokenLogprobs;
use crate::worker::v1 as wire;
use crate::{Malformed, TokenId};

/// Consecutive tokens of one sample, or prompt log-probabilities, or an end, or several of these.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Which sample.
    pub sample_index: u32,
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
    /// Log-probabilities of consecutive prompt tokens.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Prompt position of the first of `prompt_logprobs`.
    pub from_prompt_position: u32,
    /// The worker gives the request back unfinished. Alone in its delta, which is the last one.
    pub hand_back: bool,
}

impl Delta {
    /// For the wire, from a worker at `epoch`.
    pub fn into_wire(self, epoch: u64) -> wire::GenerateDelta {
        wire::GenerateDelta {
            epoch,
            sample_index: self.sample_index,
            from_position: self.from_position,
            token_ids: self.tokens,
            logprobs: self.logprobs.into_iter().map(Into::into).collect(),
            finish: self.finish.map(Into::into),
            cached_tokens: self.cached_tokens,
            prompt_logprobs: self.prompt_logprobs.into_iter().map(Into::into).collect(),
            from_prompt_position: self.from_prompt_position,
            hand_back: self.hand_back,
        }
    }

    /// From the wire: the worker's epoch, and what it sent.
    ///
    /// # Errors
    /// What no worker should send.
    pub fn from_wire(delta: wire::GenerateDelta) -> Result<(u64, Self), Malformed> {
        let new = Self {
            sample_index: delta.sample_index,
            from_position: delta.from_position,
            tokens: delta.token_ids,
            logprobs: logprobs(delta.logprobs)?,
            finish: delta.finish.map(FinishReason::try_from).transpose()?,
            cached_tokens: delta.cached_tokens,
            prompt_logprobs: logprobs(delta.prompt_logprobs)?,
            from_prompt_position: delta.from_prompt_position,
            hand_back: delta.hand_back,
        };
        Ok((delta.epoch, new))
    }
}

fn logprobs(sent: Vec<wire::TokenLogprobs>) -> Result<Vec<TokenLogprobs>, Malformed> {
    sent.into_iter().map(TokenLogprobs::try_from).collect()
}
