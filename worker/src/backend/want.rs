//! The results that a batch asks for, in addition to the keys and values that it writes, and their answers.
//!
//! A draft is verified by comparison. A draw is a function of the logits, the parameters and its position
//! (Philox keyed by seed, sample index and position). So the draw at each row of a draft equals the one that
//! plain decoding makes there. A draft token is accepted if it equals that draw, and the output is exactly
//! that of plain decoding. A rejection sampler (Leviathan et al. 2023) would preserve only the distribution:
//! do not add one.

use std::ops::Range;
use std::sync::Arc;

use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;

use super::{Batch, MaskSlot};
use crate::TokenId;

/// One result requested from a step.
#[derive(Debug, Clone)]
pub enum Want {
    /// Draw a token.
    Sample(SampleRow),
    /// Verify a draft: returns its tokens up to the first wrong one, and the right one in its place.
    Verify(VerifyRows),
    /// Score a prompt token.
    Score(ScoreRow),
    /// Return the vector of a prompt, from a model that pools.
    Pool(PoolRows),
}

/// One token to draw from the logits of `row`.
#[derive(Debug, Clone)]
pub struct SampleRow {
    /// Row whose logits are used.
    pub row: u32,
    /// The request's parameters.
    pub params: Arc<SamplingParams>,
    /// Index of the sample within the request.
    pub sample_index: u32,
    /// Absolute position of the token to draw (the row's position + 1); with seed and index it keys
    /// the Philox draw.
    pub position: u32,
    /// True while the output is shorter than `min_tokens`: stop tokens cannot be drawn.
    pub forbid_stop: bool,
    /// The sequence's tokens so far in [`Batch::history`], prompt first; empty unless
    /// `params.needs_history()`.
    pub history: Range<u32>,
    /// Prompt tokens in `history`.
    pub prompt_len: u32,
    /// Tokens that the sample's grammar allows; `None` without a grammar.
    pub mask: Option<MaskSlot>,
}

/// A draft to verify: one token is drawn from the logits of each of `rows`. The first row is the sequence's
/// last token; the others are the draft ([`Batch::draft`]). None of them is carried.
#[derive(Debug, Clone)]
pub struct VerifyRows {
    /// Rows whose logits are used: at least one, consecutive, the last ones of their sequence.
    pub rows: Range<u32>,
    /// The request's parameters.
    pub params: Arc<SamplingParams>,
    /// Index of the sample within the request.
    pub sample_index: u32,
    /// Absolute position of the token to draw from the first row; the others follow.
    pub position: u32,
    /// First position at which stop tokens may be drawn, given `min_tokens`.
    pub stop_from: u32,
    /// The sequence's tokens in [`Batch::history`], the draft included; empty unless
    /// `params.needs_history()`. Each draw reads those before its position.
    pub history: Range<u32>,
    /// Prompt tokens in `history`.
    pub prompt_len: u32,
    /// Mask of the sample's grammar for each row; empty without a grammar.
    pub masks: Vec<MaskSlot>,
}

/// Scores `target`, the prompt token that follows `row`.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRow {
    /// Row whose logits are used.
    pub row: u32,
    /// The token at the next position.
    pub target: TokenId,
    /// Number of best tokens to report.
    pub top: u32,
}

/// Computes the vector of a prompt from the hidden states of its rows after the last norm.
#[derive(Debug, Clone)]
pub struct PoolRows {
    /// The prompt's rows in this step, which end with its last: all of them if the model reads prompts whole
    /// ([`skein_model::pooling::PoolingSpec::reads_whole`]).
    pub rows: Range<u32>,
    /// Prompt position from which the tokens are of the second of two texts; `None` = one text.
    pub second_from: Option<u32>,
}

/// One draw, for a sample or at one row of a draft.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// Row whose logits are used.
    pub row: u32,
    /// The request's parameters.
    pub params: &'a SamplingParams,
    /// Index of the sample within the request.
    pub sample_index: u32,
    /// Absolute position of the token to draw.
    pub position: u32,
    /// Whether stop tokens are excluded.
    pub forbid_stop: bool,
    /// The tokens before `position`; empty unless `params.needs_history()`.
    pub history: &'a [TokenId],
    /// Prompt tokens in `history`.
    pub prompt_len: u32,
    /// Tokens that the sample's grammar allows; `None` without a grammar.
    pub mask: Option<&'a MaskSlot>,
}

impl SampleRow {
    /// Its draw, as part of `batch`.
    pub fn draw<'a>(&'a self, batch: &'a Batch) -> Draw<'a> {
        let Self { row, ref params, sample_index, position, forbid_stop, ref history, prompt_len, ref mask } =
            *self;
        let history = if params.needs_history() { batch.history_in(history) } else { &[] };
        let mask = mask.as_ref();
        Draw { row, params, sample_index, position, forbid_stop, history, prompt_len, mask }
    }
}

impl VerifyRows {
    /// Its draw at the `nth` row, as part of `batch`.
    pub fn draw<'a>(&'a self, batch: &'a Batch, nth: u32) -> Draw<'a> {
        let Self {
            ref rows, ref params, sample_index, stop_from, ref history, prompt_len, ref masks, ..
        } = *self;
        let (row, position) = (rows.start + nth, self.position + nth);
        let history = if params.needs_history() { batch.history_in(history) } else { &[] };
        let history = &history[..history.len().min(position as usize)];
        Draw {
            row,
            params,
            sample_index,
            position,
            forbid_stop: position < stop_from,
            history,
            prompt_len,
            mask: masks.get(nth as usize),
        }
    }
}

impl Want {
    /// Its draw at the `nth` of its rows, as part of `batch`; `None` if it draws nothing.
    pub fn draw<'a>(&'a self, batch: &'a Batch, nth: u32) -> Option<Draw<'a>> {
        match self {
            Self::Sample(sample) => Some(sample.draw(batch)),
            Self::Verify(verify) => Some(verify.draw(batch, nth)),
            Self::Score(_) | Self::Pool(_) => None,
        }
    }
}

/// Results of a step.
#[derive(Debug, Clone, Default)]
pub struct StepOutput {
    /// One for each of [`Batch::wants`], in that order and of the matching kind.
    pub answers: Vec<Answer>,
}

/// Result of one [`Want`].
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Answers a [`Want::Sample`].
    Sampled(Sampled),
    /// Answer to a [`Want::Sample`] whose grammar allows no token.
    Undrawn,
    /// Answer to a [`Want::Verify`]: the accepted draft tokens and the token after them. At least one token,
    /// unless a grammar allows none.
    Verified(Vec<Sampled>),
    /// Answers a [`Want::Score`].
    Scored(TokenLogprobs),
    /// Answers a [`Want::Pool`]: `[width]`, the vector after the model's head, not normalised.
    Pooled(Vec<f32>),
}

/// A drawn token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The drawn token.
    pub token: TokenId,
    /// Present if the parameters ask for log-probabilities.
    pub logprobs: Option<TokenLogprobs>,
}

impl Answer {
    /// Answer for a draft, from the draws at its rows up to the first row whose grammar allows no token.
    /// Accepts draft tokens while they equal the draws.
    pub fn verified(draft: &[TokenId], mut drawn: Vec<Sampled>) -> Self {
        assert!(
            drawn.len() <= draft.len() + 1,
            "one draw for each of the draft's tokens, and one after them"
        );
        let accepted = draft.iter().zip(&drawn).take_while(|(draft, drawn)| **draft == drawn.token).count();
        drawn.truncate(accepted + 1);
        Self::Verified(drawn)
    }

    /// The tokens by which its sequence continues.
    pub fn drawn(&self) -> &[Sampled] {
        match self {
            Self::Sampled(sampled) => std::slice::from_ref(sampled),
            Self::Verified(drawn) => drawn,
            Self::Undrawn | Self::Scored(_) | Self::Pooled(_) => &[],
        }
    }

    /// The prompt token's score, if it is one.
    pub fn scored(&self) -> Option<&TokenLogprobs> {
        if let Self::Scored(score) = self { Some(score) } else { None }
    }
}

impl StepOutput {
    /// Drawn tokens in the order of the wants.
    pub fn drawn(&self) -> impl Iterator<Item = &Sampled> {
        self.answers.iter().flat_map(Answer::drawn)
    }

    /// Scores in the order of the wants.
    pub fn scores(&self) -> impl Iterator<Item = &TokenLogprobs> {
        self.answers.iter().filter_map(Answer::scored)
    }

    /// Writes the tokens that the next step may carry: the token of each sample, 0 for other wants.
    pub fn put_carried(&self, tokens: &mut Vec<TokenId>) {
        tokens.clear();
        tokens.extend(self.answers.iter().map(|answer| match answer {
            Answer::Sampled(sampled) => sampled.token,
            Answer::Undrawn | Answer::Verified(_) | Answer::Scored(_) | Answer::Pooled(_) => 0,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_accepted_up_to_its_first_wrong_token() {
        let check = |draft: &[TokenId], drawn: &[TokenId], accepted: usize| {
            let sampled = |&token: &TokenId| Sampled { token, logprobs: None };
            let answer = Answer::verified(draft, drawn.iter().map(sampled).collect());
            let tokens: Vec<TokenId> = answer.drawn().iter().map(|sampled| sampled.token).collect();
            assert_eq!(tokens, drawn[..=accepted], "{draft:?}");
        };
        check(&[], &[4], 0);
        check(&[4, 5], &[4, 5, 6], 2);
        check(&[4, 7], &[4, 5, 6], 1);
        // Draws after a wrong token were conditioned on it, so they do not count even if equal.
        check(&[7, 5], &[4, 5, 6], 0);
        // A grammar ended the draws.
        check(&[4, 5, 8], &[4, 5], 1);
        check(&[7, 5, 8], &[4, 5], 0);
        assert_eq!(Answer::verified(&[4], Vec::new()), Answer::Verified(Vec::new()));
    }

    #[test]
    fn each_row_of_a_draft_draws_as_a_sample_would() {
        let params = Arc::new(SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() });
        let batch = Batch { tokens: vec![9, 3, 1, 2], history: vec![8, 7, 3, 1, 2], ..Batch::default() };
        let verify = VerifyRows {
            rows: 1..4,
            params: params.clone(),
            sample_index: 2,
            position: 2,
            stop_from: 4,
            history: 1..5,
            prompt_len: 1,
            masks: Vec::new(),
        };
        assert_eq!(batch.draft(&verify), [1, 2]);
        let draws = [0, 1, 2].map(|nth| verify.draw(&batch, nth));
        assert_eq!(draws.map(|draw| (draw.row, draw.position)), [(1, 2), (2, 3), (3, 4)]);
        assert_eq!(draws.map(|draw| draw.forbid_stop), [true, true, false]);
        assert_eq!(draws.map(|draw| draw.history.len()), [2, 3, 4]);
        let plain = SampleRow {
            row: 2,
            params,
            sample_index: 2,
            position: 3,
            forbid_stop: true,
            history: 1..4,
            prompt_len: 1,
            mask: None,
        };
        assert_eq!(plain.draw(&batch).history, draws[1].history);
    }
}
