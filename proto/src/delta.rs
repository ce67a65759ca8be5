//! One message of a request's output stream.

use crate::finish::FinishReason;
use crate::logprobs::TokenLogprobs;
use crate::version::Version;
use crate::worker::v1 as wire;
use crate::{Malformed, TokenId};

/// Consecutive tokens of one sample, prompt log-probabilities, the end of a sample, or several of these.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Sample that the tokens belong to, counted from 0.
    pub sample_index: u32,
    /// Absolute position of the first of `tokens`.
    pub from_position: u32,
    /// The sample's next tokens.
    pub tokens: Vec<TokenId>,
    /// One for each token if the request wants them, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the sample's last delta.
    pub finish: Option<FinishReason>,
    /// Prompt tokens found in the cache; only on the reader's first delta.
    pub cached_tokens: Option<u32>,
    /// Log-probabilities of consecutive prompt tokens.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Prompt position of the first of `prompt_logprobs`.
    pub from_prompt_position: u32,
    /// The vector of a request with pooling, with `finish`; else empty.
    pub pooled: Vec<f32>,
    /// With `finish` by a stop token, which is none of `tokens`: its log-probabilities, if the request wants
    /// them.
    pub stop_logprobs: Option<Box<TokenLogprobs>>,
    /// The worker hands the request back unfinished. Nothing else is in this delta, and it is the last one.
    pub hand_back: bool,
}

/// A delta, the epoch of the worker that sent it, and the version of the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerDelta {
    /// Epoch of the sending worker.
    pub epoch: u64,
    /// Version of the model that computed it; unknown = the worker's only one.
    pub version: Version,
    /// New output of the request.
    pub delta: Delta,
}

impl From<WorkerDelta> for wire::GenerateDelta {
    fn from(WorkerDelta { epoch, version, delta }: WorkerDelta) -> Self {
        Self {
            epoch,
            sample_index: delta.sample_index,
            from_position: delta.from_position,
            token_ids: delta.tokens,
            logprobs: delta.logprobs.into_iter().map(Into::into).collect(),
            finish: delta.finish.map(Into::into),
            cached_tokens: delta.cached_tokens,
            prompt_logprobs: delta.prompt_logprobs.into_iter().map(Into::into).collect(),
            from_prompt_position: delta.from_prompt_position,
            hand_back: delta.hand_back,
            pooled: delta.pooled,
            stop_logprobs: delta.stop_logprobs.map(|logprobs| (*logprobs).into()),
            model_fingerprint: version.0,
        }
    }
}

impl TryFrom<wire::GenerateDelta> for WorkerDelta {
    type Error = Malformed;

    fn try_from(sent: wire::GenerateDelta) -> Result<Self, Malformed> {
        let delta = Delta {
            sample_index: sent.sample_index,
            from_position: sent.from_position,
            tokens: sent.token_ids,
            logprobs: logprobs(sent.logprobs)?,
            finish: sent.finish.map(FinishReason::try_from).transpose()?,
            cached_tokens: sent.cached_tokens,
            prompt_logprobs: logprobs(sent.prompt_logprobs)?,
            from_prompt_position: sent.from_prompt_position,
            pooled: sent.pooled,
            stop_logprobs: sent.stop_logprobs.map(TokenLogprobs::try_from).transpose()?.map(Box::new),
            hand_back: sent.hand_back,
        };
        Ok(Self { epoch: sent.epoch, version: Version(sent.model_fingerprint), delta })
    }
}

fn logprobs(sent: Vec<wire::TokenLogprobs>) -> Result<Vec<TokenLogprobs>, Malformed> {
    sent.into_iter().map(TokenLogprobs::try_from).collect()
}
