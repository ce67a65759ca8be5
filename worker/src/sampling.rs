//! How a request wants its tokens drawn. Checked values only: the service refuses what is out of range.
//!
//! A token is a function of (model, tokens so far, these parameters, sample index): no state is kept between
//! draws, so any worker can continue any request.

use crate::TokenId;

/// Sampling parameters of a request, the same for all its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy.
    pub temperature: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 0 = off.
    pub min_p: f32,
    /// 1 = off; over prompt and output tokens (as in CTRL, Keskar et al. 2019).
    pub repetition_penalty: f32,
    /// 0 = off; over output tokens.
    pub presence_penalty: f32,
    /// 0 = off; over output tokens.
    pub frequency_penalty: f32,
    /// Key of the Philox stream.
    pub seed: u64,
    /// Added to the logits of these tokens, before penalties.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Output tokens at most, those delivered before a resume included.
    pub max_tokens: u32,
    /// Stop tokens cannot be drawn before this many output tokens.
    pub min_tokens: u32,
    /// Tokens that end a sample: the request's own, and unless it ignores them the model's end-of-sequence tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Report the chosen token's log-probability and this many best ones.
    pub logprobs: Option<u32>,
    /// The same for prompt tokens.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
            max_tokens: 16,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Whether drawing a token needs the tokens so far.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Log-probabilities at one position, of the raw model distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands there.
    pub token: TokenId,
    /// Its natural-log probability.
    pub logprob: f32,
    /// Its rank, 1 = most probable.
    pub rank: u32,
    /// The best tokens, best first; ties by lower id.
    pub top: Vec<(TokenId, f32)>,
}
