//! The worker's own check of sampling parameters.

use std::collections::HashSet;

use super::{Range, SamplingParams};
use crate::invalid::{Invalid, check, check_tokens};

/// Most entries of `logit_bias`.
const MAX_LOGIT_BIAS: usize = 1024;
/// Most entries of `stop_token_ids`.
const MAX_STOP_TOKENS: usize = 1024;
/// Most alternatives reported beside the chosen token.
const MAX_LOGPROBS: u32 = 20;
/// Most entries in `allowed_token_ids`.
pub const MAX_ALLOWED_TOKENS: usize = 16 * 1024;
/// Most entries in `bad_words`.
pub const MAX_BAD_WORDS: usize = 256;
/// Most tokens per banned sequence.
pub const MAX_BAD_WORD_TOKENS: usize = 64;

impl SamplingParams {
    /// Checks every parameter for a model of `vocab_size` tokens.
    ///
    /// # Errors
    /// The first parameter out of range.
    pub fn check(&self, vocab_size: u32) -> Result<(), Invalid> {
        check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")?;
        let allowed = format_args!("at most max_tokens, {}", self.max_tokens);
        check(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, allowed)?;
        for (field, value) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            let best = value.unwrap_or(0);
            check(best <= MAX_LOGPROBS, field, best, format_args!("0..={MAX_LOGPROBS}"))?;
        }
        self.numbers().iter().try_for_each(|(range, value)| check_number(range, *value))?;
        self.check_biases(vocab_size)?;
        check_count("stop_token_ids", self.stop_token_ids.len(), MAX_STOP_TOKENS)?;
        check_tokens(&self.stop_token_ids, "stop_token_ids", vocab_size)?;
        check_count("allowed_token_ids", self.allowed_token_ids.len(), MAX_ALLOWED_TOKENS)?;
        check_tokens(&self.allowed_token_ids, "allowed_token_ids", vocab_size)?;
        self.check_bad_words(vocab_size)
    }

    fn check_bad_words(&self, vocab_size: u32) -> Result<(), Invalid> {
        check_count("bad_words", self.bad_words.len(), MAX_BAD_WORDS)?;
        self.bad_words.iter().try_for_each(|word| {
            let allowed = format_args!("1..={MAX_BAD_WORD_TOKENS} tokens");
            let fits = (1..=MAX_BAD_WORD_TOKENS).contains(&word.len());
            check(fits, "bad_words.token_ids", format_args!("{} tokens", word.len()), allowed)?;
            check_tokens(word, "bad_words.token_ids", vocab_size)
        })
    }

    fn check_biases(&self, vocab_size: u32) -> Result<(), Invalid> {
        check_count("logit_bias", self.logit_bias.len(), MAX_LOGIT_BIAS)?;
        let mut seen = HashSet::new();
        for &(token, bias) in &self.logit_bias {
            check_tokens(&[token], "logit_bias.token_id", vocab_size)?;
            check(seen.insert(token), "logit_bias.token_id", token, "each token once")?;
            check_number(&Range::BIAS, bias)?;
        }
        Ok(())
    }
}

fn check_number(range: &Range, value: f32) -> Result<(), Invalid> {
    check(range.has(f64::from(value)), range.name, value, range)
}

fn check_count(field: &'static str, got: usize, most: usize) -> Result<(), Invalid> {
    check(got <= most, field, format_args!("{got} entries"), format_args!("at most {most} entries"))
}
