//! Why a sample ended.

use crate::worker::v1 as wire;
use crate::{Malformed, TokenId};

/// Why a sample ended, as a worker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop or end-of-sequence token was drawn: this one, if known. It is not part of the output.
    Stop(Option<TokenId>),
    /// `max_tokens` or `max_model_len` was reached.
    Length,
    /// The router ended the sample because it saw a stop string.
    Abort,
}

impl From<FinishReason> for wire::Finish {
    fn from(reason: FinishReason) -> Self {
        let (reason, stop_token_id) = match reason {
            FinishReason::Stop(token) => (wire::FinishReason::Stop, token),
            FinishReason::Length => (wire::FinishReason::Length, None),
            FinishReason::Abort => (wire::FinishReason::Abort, None),
        };
        Self { reason: reason.into(), stop_token_id }
    }
}

impl TryFrom<wire::Finish> for FinishReason {
    type Error = Malformed;

    fn try_from(finish: wire::Finish) -> Result<Self, Malformed> {
        match finish.reason() {
            wire::FinishReason::Stop => Ok(Self::Stop(finish.stop_token_id)),
            wire::FinishReason::Length => Ok(Self::Length),
            wire::FinishReason::Abort => Ok(Self::Abort),
            wire::FinishReason::Unspecified => Err(Malformed("a sample ended without a reason")),
        }
    }
}
