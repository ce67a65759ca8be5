//! Texts for a draft model: which of them it drafts before the next step, and where its drafts go.

use std::sync::Arc;
use std::time::Duration;

use skein_proto::block_hash::BlockHash;
use skein_proto::sampling::SamplingParams;

use super::sequence::Sequence;
use super::{RequestKey, Scheduler};
use crate::TokenId;
use crate::draft::Share;
use crate::kv_cache::CacheScope;

/// What a draft model does for one sample before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelDraft {
    /// Request of the sample.
    pub request: RequestKey,
    /// Index of the sample within the request.
    pub sample: u32,
    /// Most known tokens to compute, and tokens to draft.
    pub share: Share,
}

/// A sample's tokens and parameters, as a draft model needs them.
#[derive(Debug, Clone, Copy)]
pub struct ModelText<'a> {
    /// All known tokens.
    pub tokens: &'a [TokenId],
    /// Hashes of its leading full blocks.
    pub hashes: &'a [BlockHash],
    /// Sequences that it may share blocks with.
    pub scope: &'a CacheScope,
    /// The request's parameters.
    pub params: &'a Arc<SamplingParams>,
    /// Prompt tokens among `tokens`.
    pub prompt_len: u32,
}

impl Sequence {
    fn model_text(&self) -> ModelText<'_> {
        let Self { tokens, hashes, scope, params, prompt_len, .. } = self;
        ModelText { tokens, hashes, scope, params, prompt_len: *prompt_len }
    }
}

impl Scheduler {
    /// Shares of a draft model's work before the next step, for samples that get any. Empty if the step will
    /// compute prompts, because drafts wait for them. `behind` returns the known tokens of a sample that the
    /// draft model has not computed.
    pub fn model_drafts(
        &mut self,
        behind: impl Fn(RequestKey, u32, &ModelText<'_>) -> u32,
    ) -> Vec<ModelDraft> {
        let number = self.planned_steps + 1;
        let Self { drafts, queues, limits, .. } = self;
        let Some(drafts) = drafts.as_mut().filter(|drafts| drafts.have_model()) else { return Vec::new() };
        let is_prompt = |sequence: &Sequence| sequence.pending(number) > 0 && !sequence.is_decoding(number);
        if !queues.waiting.is_empty() || queues.running.iter().any(is_prompt) {
            return Vec::new();
        }
        let (mut candidates, mut of, mut streams) = (Vec::new(), Vec::new(), 0);
        for sequence in queues.running.iter_mut().filter(|sequence| sequence.is_decoding(number)) {
            streams += 1;
            // A draft follows a known token.
            if sequence.planned_len() == sequence.len() && sequence.samples.len() == 1 {
                let (request, sample) = (sequence.request, sequence.samples[0]);
                let behind = behind(request, sample, &sequence.model_text());
                candidates.push(drafts.candidate(sequence, behind));
                of.push((request, sample));
            }
        }
        let rows = limits.max_num_batched_tokens.saturating_sub(streams);
        let shares = drafts.shares(streams, rows, &candidates);
        let with_share = of.into_iter().zip(shares).filter(|(_, share)| share.rows > 0);
        with_share.map(|((request, sample), share)| ModelDraft { request, sample, share }).collect()
    }

    /// The text of a sample; `None` if it is not here.
    pub fn model_text(&self, request: RequestKey, sample: u32) -> Option<ModelText<'_>> {
        let has = |sequence: &&Sequence| sequence.request == request && sequence.samples.contains(&sample);
        Some(self.queues.all().find(has)?.model_text())
    }

    /// Stores the tokens that a draft model drew after the known ones of a sample.
    pub fn set_modelled(&mut self, request: RequestKey, sample: u32, tokens: Vec<TokenId>) {
        let sequence = self.queues.rank_of(request, sample).and_then(|rank| self.queues.get_mut(rank));
        if let Some(sequence) = sequence {
            sequence.modelled = (sequence.len(), tokens);
        }
    }

    /// Records that a step of `rows` rows of the draft model took `took`.
    pub fn model_took(&mut self, rows: u32, took: Duration) {
        if let Some(guesser) = self.drafts.as_mut().and_then(|drafts| drafts.guesser()) {
            guesser.model_took(rows, took);
        }
    }
}
