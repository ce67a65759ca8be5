//! A sequence: tokens, the blocks that hold their keys and values, and how far it is.
//!
//! Here is what is known of it; `ahead` says how far it will be when the steps under way have ended, and `rows` gives a step
//! its next rows.

use std::collections::VecDeque;
use std::sync::Arc;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::{self, BlockHash};
use skein_proto::finish::FinishReason;
use skein_proto::sampling::SamplingParams;

use super::request::{Event, Hold, NewRequest, RequestKey};
use super::shares::Share;
use crate::TokenId;
use crate::backend::Sampled;
use crate::kv_cache::{BlockTable, CacheScope, Prefix};

/// Who goes first: lower priority, then the nearer deadline, then the earlier arrival. One order for admission,
/// prefill and preemption: the first of it always gets on, so nobody waits in a circle. Unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub priority: i32,
    /// `None` becomes the end of time.
    pub deadline: Timestamp,
    pub arrival: u64,
    pub sample: u32,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub rank: Rank,
    pub request: RequestKey,
    /// One, or until the first draw all fresh samples of the request: they share every block so far.
    pub samples: Vec<u32>,
    pub tokens: Vec<TokenId>,
    pub prompt_len: u32,
    /// Most tokens it may ever have.
    pub max_len: u32,
    pub params: Arc<SamplingParams>,
    pub scope: CacheScope,
    /// Of the full blocks of `tokens`.
    pub hashes: Vec<BlockHash>,
    pub table: BlockTable,
    /// Tokens whose keys and values are in `table`, without those of steps under way.
    pub computed: u32,
    /// Next prompt position to score; at `prompt_len` all are.
    pub next_score: u32,
    /// Tokens found in the cache, until reported.
    pub unreported_hit: Option<u32>,
    /// While it waits: tokens to compute, by what was cached when it came.
    pub uncached: u32,
    /// It has not run yet.
    pub reports_hit: bool,
    /// Its part in the steps under way and the one being planned, oldest first.
    pub shares: VecDeque<Share>,
    /// What it waits for beside the steps.
    pub hold: Option<Hold>,
    pub finished: bool,
}

impl Sequence {
    /// A sequence for `samples`, whose first `delivered` output tokens are known. `first`: it
    /// scores the prompt.
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
            samples,
            tokens,
            prompt_len,
            max_len: prompt_len.saturating_add(request.params.max_tokens).min(max_model_len),
            params: request.params.clone(),
            scope: request.scope.clone(),
            hashes: Vec::new(),
            table: BlockTable::default(),
            computed: 0,
            next_score: if first && request.params.prompt_logprobs.is_some() { 1 } else { prompt_len },
            unreported_hit: None,
            uncached: 0,
            reports_hit: true,
            shares: VecDeque::new(),
            hold: None,
            finished: false,
        }
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn output_len(&self) -> u32 {
        self.len() - self.prompt_len
    }

    /// Known tokens still to compute before the next draw, those of steps under way included.
    pub fn uncomputed(&self) -> u32 {
        self.len() - self.computed
    }

    /// It streams: as far as is known, one row away from its next token, prompt behind it.
    pub fn is_streaming(&self) -> bool {
        self.uncomputed() == 1 && self.output_len() > 0
    }

    /// Hashes the full blocks that have none yet.
    pub fn extend_hashes(&mut self, block_size: u32) {
        let size = block_size as usize;
        let mut parent = self.hashes.last().copied().unwrap_or(self.scope.root);
        for block in self.tokens[self.hashes.len() * size..].chunks_exact(size) {
            parent = block_hash::extend(parent, block);
            self.hashes.push(parent);
        }
    }

    /// What the cache may look up. Nothing while prompt tokens are to be scored: that takes their logits.
    pub fn cacheable_prefix(&self) -> Prefix<'_> {
        let hashes = if self.next_score < self.prompt_len { &[][..] } else { &self.hashes };
        Prefix { scope: &self.scope, tokens: &self.tokens, hashes }
    }

    /// The sequence of another sample, at the point where their tokens part.
    pub fn fork(&self, sample: u32, table: BlockTable) -> Self {
        Self {
            rank: Rank { sample, ..self.rank },
            request: self.request,
            samples: vec![sample],
            tokens: self.tokens.clone(),
            prompt_len: self.prompt_len,
            max_len: self.max_len,
            params: self.params.clone(),
            scope: self.scope.clone(),
            hashes: self.hashes.clone(),
            table,
            computed: self.computed,
            next_score: self.next_score,
            unreported_hit: None,
            uncached: 0,
            reports_hit: false,
            shares: VecDeque::new(),
            hold: self.hold,
            finished: false,
        }
    }

    /// Takes a drawn token, and ends the sample if that was its last.
    pub fn accept(&mut self, drawn: &Sampled, events: &mut Vec<Event>) {
        if self.params.stop_token_ids.contains(&drawn.token) {
            assert!(self.output_len() >= self.params.min_tokens, "a stop token was drawn before min_tokens");
            return self.finish(FinishReason::Stop(Some(drawn.token)), events);
        }
        events.push(Event::Token {
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

    /// No further token may follow.
    pub fn is_full(&self) -> bool {
        self.len() >= self.max_len
    }

    /// Ends all its samples.
    pub fn finish(&mut self, reason: FinishReason, events: &mut Vec<Event>) {
        self.finished = true;
        let (request, position) = (self.request, self.len());
        let finished = |&sample: &u32| Event::Finished { request, sample, position, reason };
        events.extend(self.samples.iter().map(finished));
    }
}
