//! A sequence: its tokens, the blocks holding their keys and values, and its progress.
//!
//! This file holds what is known now. `in_flight` derives the state after the steps in flight, and `rows`
//! plans the next rows.

use std::collections::VecDeque;
use std::sync::Arc;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::{self, BlockHash};
use skein_proto::finish::FinishReason;
use skein_proto::sampling::SamplingParams;

use super::checkpoints::Checkpoints;
use super::planned_rows::PlannedRows;
use super::request::{NewRequest, RequestEvent, RequestKey};
use crate::TokenId;
use crate::backend::{LoadedAdapter, MaskSlot, Sampled};
use crate::draft::Progress;
use crate::kv_cache::{BlockTable, CacheScope, Prefix};

/// Order of admission, prefill and preemption: lower priority, then nearer deadline, then earlier arrival. It
/// is total and the first always makes progress, so sequences cannot wait for each other in a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub priority: i32,
    /// Requests without a deadline get the largest timestamp.
    pub deadline: Timestamp,
    pub arrival: u64,
    pub sample: u32,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub rank: Rank,
    pub request: RequestKey,
    pub call: Call,
    /// Sample indices: one, or all fresh samples of the request until the first draw; they share every
    /// block until then.
    pub samples: Vec<u32>,
    pub tokens: Vec<TokenId>,
    pub prompt_len: u32,
    /// Most tokens it may reach, prompt included.
    pub max_len: u32,
    pub params: Arc<SamplingParams>,
    pub scope: CacheScope,
    pub adapter: Option<Arc<LoadedAdapter>>,
    /// Hashes of the full blocks of `tokens`.
    pub hashes: Vec<BlockHash>,
    pub table: BlockTable,
    /// Where its states are worth keeping, if the model has recurrent layers.
    pub checkpoints: Checkpoints,
    /// Tokens with keys and values in `table`, not counting steps in flight.
    pub computed: u32,
    /// Next prompt position to score; equal to `prompt_len` once all are scored.
    pub next_score: u32,
    /// Prompt tokens found in the cache, until an event has reported them.
    pub unreported_hit: Option<u32>,
    /// While waiting: tokens to compute, given what was cached when it was queued.
    pub uncached: u32,
    /// It has not run yet, so its first admission reports the cache hit.
    pub reports_hit: bool,
    /// Its rows in the steps in flight and in the one being planned, oldest first.
    pub planned: VecDeque<PlannedRows>,
    /// Masks for the next draws of constrained samples.
    pub masks: Vec<(u32, MaskSlot)>,
    /// Whether a token that is still being drawn may be carried into the next step.
    pub carries: bool,
    /// State of its drafts.
    pub progress: Progress,
    /// Number of tokens, and the guessed tokens that the grammar forces after them.
    pub forced: (u32, Vec<TokenId>),
    /// Number of tokens, and the tokens that a draft model drew after them.
    pub modelled: (u32, Vec<TokenId>),
    pub finished: bool,
}

impl Sequence {
    /// A sequence for `samples` that share the output tokens `delivered`. `first`: it scores the prompt.
    pub fn new(
        request: &NewRequest,
        max_model_len: u32,
        arrival: u64,
        samples: Vec<u32>,
        delivered: &[TokenId],
        first: bool,
    ) -> Self {
        let mut tokens =
            Vec::with_capacity(request.prompt.len() + request.params.max_tokens.min(4096) as usize);
        tokens.extend_from_slice(&request.prompt);
        tokens.extend_from_slice(delivered);
        let prompt_len = request.prompt.len() as u32;
        Self {
            rank: Rank {
                priority: request.priority,
                deadline: request.deadline.unwrap_or(Timestamp::from_start(std::time::Duration::MAX)),
                arrival,
                sample: samples[0],
            },
            request: request.key,
            call: request.call.map_or(Call::Alone(request.key), Call::Named),
            samples,
            tokens,
            prompt_len,
            max_len: longest(request, max_model_len),
            params: request.params.clone(),
            scope: request.scope.clone(),
            adapter: request.adapter.clone(),
            hashes: Vec::new(),
            table: BlockTable::default(),
            checkpoints: Checkpoints::default(),
            computed: 0,
            next_score: if first && request.params.prompt_logprobs.is_some() { 1 } else { prompt_len },
            unreported_hit: None,
            uncached: 0,
            reports_hit: true,
            planned: VecDeque::new(),
            masks: Vec::new(),
            carries: true,
            progress: Progress::default(),
            forced: (0, Vec::new()),
            modelled: (0, Vec::new()),
            finished: false,
        }
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn output_len(&self) -> u32 {
        self.len() - self.prompt_len
    }

    /// Known tokens not computed yet, including those in flight.
    pub fn uncomputed(&self) -> u32 {
        self.len() - self.computed
    }

    /// Streaming: the prompt is done and, as far as is known, it is one row away from its next token.
    pub fn is_streaming(&self) -> bool {
        self.uncomputed() == 1 && self.output_len() > 0
    }

    /// Whether it ends with the vector of its prompt instead of tokens.
    pub fn is_pooled(&self) -> bool {
        self.params.pooling.is_some()
    }

    /// Whether a grammar constrains its draws.
    pub fn is_constrained(&self) -> bool {
        self.params.grammar.is_some()
    }

    /// Whether its next draw can be planned only once all tokens before it are known.
    pub fn needs_known_tokens(&self) -> bool {
        self.is_constrained() || self.params.bans_sequences()
    }

    /// Mask for the next draw of `sample`; `None` without a grammar.
    pub fn mask_of(&self, sample: u32) -> Option<MaskSlot> {
        let found = self.masks.iter().find(|(of, _)| *of == sample).map(|(_, slot)| slot.clone());
        assert!(found.is_some() || !self.is_constrained(), "a constrained draw has a mask");
        found
    }

    /// Hashes the full blocks that have no hash yet.
    pub fn extend_hashes(&mut self, block_size: u32) {
        let size = block_size as usize;
        let mut parent = self.hashes.last().copied().unwrap_or(self.scope.root);
        for block in self.tokens[self.hashes.len() * size..].chunks_exact(size) {
            parent = block_hash::extend(parent, block);
            self.hashes.push(parent);
        }
    }

    /// The prefix to look up in the cache. Empty while prompt tokens are to be scored, because scoring
    /// needs their logits.
    pub fn cacheable_prefix(&self) -> Prefix<'_> {
        let hashes = if self.next_score < self.prompt_len { &[][..] } else { &self.hashes };
        Prefix { scope: &self.scope, tokens: &self.tokens, hashes }
    }

    /// A copy for another sample, at the point where their tokens diverge.
    pub fn fork(&self, sample: u32, table: BlockTable) -> Self {
        Self {
            rank: Rank { sample, ..self.rank },
            request: self.request,
            call: self.call,
            samples: vec![sample],
            tokens: self.tokens.clone(),
            prompt_len: self.prompt_len,
            max_len: self.max_len,
            params: self.params.clone(),
            scope: self.scope.clone(),
            adapter: self.adapter.clone(),
            hashes: self.hashes.clone(),
            table,
            checkpoints: self.checkpoints,
            computed: self.computed,
            next_score: self.next_score,
            unreported_hit: None,
            uncached: 0,
            reports_hit: false,
            planned: VecDeque::new(),
            masks: Vec::new(),
            carries: self.carries,
            progress: Progress::default(),
            forced: (0, Vec::new()),
            modelled: (0, Vec::new()),
            finished: false,
        }
    }

    /// Appends a drawn token and ends the sample if it was the last.
    pub fn accept(&mut self, drawn: &Sampled, events: &mut Vec<RequestEvent>) {
        if self.params.stop_token_ids.contains(&drawn.token) {
            // A grammar may allow only a stop token, and then overrides `min_tokens`.
            let params = &self.params;
            let may_be_all =
                self.is_constrained() || !params.allowed_token_ids.is_empty() || !params.bad_words.is_empty();
            let late = self.output_len() >= params.min_tokens || may_be_all;
            assert!(late, "a stop token was drawn before min_tokens");
            let (request, sample) = (self.request, self.samples[0]);
            let scored = |logprobs| RequestEvent::StopScored { request, sample, logprobs };
            events.extend(drawn.logprobs.clone().map(scored));
            return self.finish(FinishReason::Stop(Some(drawn.token)), events);
        }
        events.push(RequestEvent::Token {
            request: self.request,
            sample: self.samples[0],
            position: self.len(),
            token: drawn.token,
            logprobs: drawn.logprobs.clone(),
        });
        self.tokens.push(drawn.token);
        if self.is_full() {
            self.finish(FinishReason::Length, events);
        }
    }

    /// Ends with the vector of its prompt.
    pub fn accept_vector(&mut self, vector: Vec<f32>, events: &mut Vec<RequestEvent>) {
        events.push(RequestEvent::Pooled { request: self.request, sample: self.samples[0], vector });
        self.finish(FinishReason::Stop(None), events);
    }

    /// True if no further token fits.
    pub fn is_full(&self) -> bool {
        self.len() >= self.max_len
    }

    /// Ends all its samples.
    pub fn finish(&mut self, reason: FinishReason, events: &mut Vec<RequestEvent>) {
        self.finished = true;
        let (request, position) = (self.request, self.len());
        let finished = |&sample: &u32| RequestEvent::Finished { request, sample, position, reason };
        events.extend(self.samples.iter().map(finished));
    }
}

/// Most tokens that a sequence of `request` may reach. A pooled one never has the token that it counts as
/// drawing.
fn longest(request: &NewRequest, max_model_len: u32) -> u32 {
    let wanted = (request.prompt.len() as u32).saturating_add(request.params.max_tokens);
    if request.params.pooling.is_some() { wanted } else { wanted.min(max_model_len) }
}

/// Client call that a sequence belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// Requests with this call number.
    Named(u64),
    /// A request without a call number.
    Alone(RequestKey),
}
