//! Log-probabilities of tokens under the raw model distribution, before penalties, temperature and
//! truncation.

use crate::worker::v1 as wire;
use crate::{Malformed, TokenId};

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token at this position.
    pub token: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its rank; 1 = most probable.
    pub rank: u32,
    /// The most probable tokens, best first; ties go to the lower id.
    pub top: Vec<(TokenId, f32)>,
}

impl From<TokenLogprobs> for wire::TokenLogprobs {
    fn from(TokenLogprobs { token, logprob, rank, top }: TokenLogprobs) -> Self {
        let (top_token_ids, top_logprobs) = top.into_iter().unzip();
        Self { token_id: token, logprob, rank, top_token_ids, top_logprobs }
    }
}

impl TryFrom<wire::TokenLogprobs> for TokenLogprobs {
    type Error = Malformed;

    fn try_from(sent: wire::TokenLogprobs) -> Result<Self, Malformed> {
        if sent.top_token_ids.len() != sent.top_logprobs.len() {
            return Err(Malformed("top_token_ids and top_logprobs differ in length"));
        }
        let top = sent.top_token_ids.into_iter().zip(sent.top_logprobs).collect();
        Ok(Self { token: sent.token_id, logprob: sent.logprob, rank: sent.rank, top })
    }
}
