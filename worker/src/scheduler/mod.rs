//! Which tokens the next step computes. Pure: requests and drawn tokens in, batches and events out; it knows no
//! clock, no tensor and no protobuf.
//!
//! There is no prefill phase and no decode phase, only one token budget a step: decoding sequences take one row
//! each, then prompts take what is left, one after another, so that first tokens come one by one instead of all
//! late. Out of blocks, the last in rank gives its blocks back and is computed again later.
//!
//! Why nothing waits forever: [`Rank`] orders everybody, the first in rank may preempt all that are not yet in
//! the step, and one sequence alone always fits (`max_model_len` is at most what the pool holds).

mod rate;
mod request;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::BlockHash;

pub use request::{Accepted, Event, FinishReason, NewRequest, NewSample, Refusal, RequestKey};

use crate::TokenId;
use crate::backend::{Batch, StepOutput};
use crate::config::SchedulerConfig;
use crate::kv_cache::{CacheChange, KvCache, Prefix, RunStored};
use rate::Rate;
use sequence::{Rank, Sequence};

/// Tokens after which a measured rate has half forgotten: a few steps' worth of each.
const PREFILL_RATE_HALF_LIFE: f64 = 4096.0;
const DECODE_RATE_HALF_LIFE: f64 = 256.0;

/// The requests of one worker.
#[derive(Debug)]
pub struct Scheduler {
    kv: KvCache,
    /// Sorted by rank.
    running: Vec<Sequence>,
    waiting: BTreeMap<Rank, Sequence>,
    arrivals: u64,
    /// Somebody lost blocks in this step: nobody new is let in.
    short_of_blocks: bool,
    max_model_len: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    max_waiting: u32,
    share_prefixes: bool,
    prefill_rate: Rate,
    decode_rate: Rate,
}

/// One step: what the backend computes, and what [`Scheduler::commit`] wants back.
#[derive(Debug)]
pub struct Plan {
    /// For the backend.
    pub batch: Batch,
    /// For the commit.
    pub step: Step,
}

/// The shape of a planned step.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Rows over prompts (or over tokens computed again).
    pub prefill_tokens: u32,
    /// Rows of sequences that decode.
    pub decode_tokens: u32,
    started: Timestamp,
}

impl Step {
    fn tokens(&self) -> u32 {
        self.prefill_tokens + self.decode_tokens
    }
}

/// What a router wants to know of a scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SchedulerLoad {
    /// Tokens to compute before the first draws of what waits or prefills, cached ones not counted.
    pub queued_uncached_tokens: u64,
    /// Samples that wait.
    pub waiting: u32,
    /// Samples that run.
    pub running: u32,
    /// Blocks free or only cached.
    pub free_blocks: u32,
    /// 0 = not measured yet.
    pub prefill_tokens_per_second: f32,
    /// 0 = not measured yet.
    pub decode_tokens_per_second: f32,
}

impl Scheduler {
    /// A scheduler over `kv_blocks` blocks for sequences of at most `max_model_len` tokens, which must fit.
    pub fn new(config: &SchedulerConfig, kv_blocks: u32, max_model_len: u32) -> Self {
        let kv = KvCache::new(kv_blocks, config.block_size, config.enable_prefix_caching);
        assert!(kv.blocks_for(max_model_len) <= kv_blocks, "the longest sequence fits into the KV cache");
        Self {
            kv,
            running: Vec::new(),
            waiting: BTreeMap::new(),
            arrivals: 0,
            short_of_blocks: false,
            max_model_len,
            // Every running sequence gets its row in every step.
            max_num_seqs: config.max_num_seqs.min(config.max_num_batched_tokens).max(1),
            max_num_batched_tokens: config.max_num_batched_tokens.max(1),
            max_waiting: config.max_num_queued_reqs,
            share_prefixes: config.enable_prefix_caching,
            prefill_rate: Rate::new(PREFILL_RATE_HALF_LIFE),
            decode_rate: Rate::new(DECODE_RATE_HALF_LIFE),
        }
    }

    /// Takes a request, or says why not. Between steps only.
    pub fn submit(&mut self, request: NewRequest) -> Result<Accepted, Refusal> {
        let fresh: Vec<u32> = request
            .samples
            .iter()
            .filter(|sample| sample.delivered.is_empty())
            .map(|sample| sample.index)
            .collect();
        self.admit_or_refuse(fresh.len() as u32)?;
        self.arrivals += 1;
        let resumed = request.samples.iter().filter(|sample| !sample.delivered.is_empty());
        let parts = (!fresh.is_empty()).then_some((fresh, &[][..]));
        let mut parts: Vec<(Vec<u32>, &[TokenId])> = parts
            .into_iter()
            .chain(resumed.map(|sample| (vec![sample.index], &sample.delivered[..])))
            .collect();
        // In the order of their ranks, so that the first one is the first to run.
        parts.sort_unstable_by_key(|(samples, _)| samples[0]);
        let mut accepted = Accepted { cached_blocks: 0, uncached_hashes: Vec::new(), events: Vec::new() };
        let mut first = true;
        for (samples, delivered) in parts {
            let mut sequence = Sequence::new(&request, self.arrivals, samples, delivered, first);
            if sequence.is_full(self.max_model_len) {
                sequence.finish(FinishReason::Length, &mut accepted.events);
                continue;
            }
            sequence.extend_hashes(self.kv.block_size());
            if first && self.share_prefixes {
                (accepted.cached_blocks, accepted.uncached_hashes) = self.prompt_hashes(&sequence);
            }
            first = false;
            self.enqueue(sequence);
        }
        Ok(accepted)
    }

    fn enqueue(&mut self, mut sequence: Sequence) {
        let cached = self.kv.match_prefix(sequence.cacheable_prefix()).blocks * self.kv.block_size();
        sequence.uncached = sequence.len() - cached;
        self.waiting.insert(sequence.rank, sequence);
    }

    fn admit_or_refuse(&self, fresh: u32) -> Result<(), Refusal> {
        let waiting = self.waiting.len() as u32;
        if waiting >= self.max_waiting {
            return Err(Refusal::QueueFull { waiting, limit: self.max_waiting });
        }
        if fresh > self.max_num_seqs {
            return Err(Refusal::TooManySamples { got: fresh, limit: self.max_num_seqs });
        }
        Ok(())
    }

    /// How many leading prompt blocks are cached, and the hashes of those that are not.
    fn prompt_hashes(&self, sequence: &Sequence) -> (u32, Vec<BlockHash>) {
        let full = (sequence.prompt_len / self.kv.block_size()) as usize;
        let hashes = &sequence.hashes[..full];
        let prefix = Prefix { scope: &sequence.scope, tokens: &sequence.tokens, hashes };
        let cached = self.kv.match_prefix(prefix).blocks;
        (cached, hashes[cached as usize..].to_vec())
    }

    /// Ends one sample; `None` when it is not here. Its blocks are free at once. Between steps only.
    pub fn abort(&mut self, request: RequestKey, sample: u32) -> Option<Event> {
        let has = |sequence: &Sequence| sequence.request == request && sequence.samples.contains(&sample);
        let rank = self.running.iter().chain(self.waiting.values()).find(|&sequence| has(sequence))?.rank;
        let index = self.index_of(rank);
        let sequence = match index {
            Some(index) => &mut self.running[index],
            None => self.waiting.get_mut(&rank)?,
        };
        let position = sequence.len();
        sequence.samples.retain(|&other| other != sample);
        if sequence.samples.is_empty() {
            match index {
                Some(index) => {
                    let sequence = self.running.remove(index);
                    self.kv.release(sequence.table);
                }
                None => drop(self.waiting.remove(&rank)),
            }
        }
        Some(Event::Finished { request, sample, position, reason: FinishReason::Abort })
    }

    /// Forgets a request nobody listens to any more. Between steps only.
    pub fn cancel(&mut self, request: RequestKey) {
        self.waiting.retain(|_, sequence| sequence.request != request);
        for index in (0..self.running.len()).rev() {
            if self.running[index].request == request {
                let sequence = self.running.remove(index);
                self.kv.release(sequence.table);
            }
        }
    }

    /// Most samples that run at once: as configured, but no more than a step has tokens.
    pub fn max_num_seqs(&self) -> u32 {
        self.max_num_seqs
    }

    /// Nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Plans one step; `None` when idle. A plan is committed before the next one is made.
    pub fn plan(&mut self, now: Timestamp) -> Option<Plan> {
        let step = Step { prefill_tokens: 0, decode_tokens: 0, started: now };
        let mut plan = Plan { batch: Batch::default(), step };
        self.short_of_blocks = false;
        self.make_room_for_higher_priority();
        self.plan_decodes(&mut plan);
        self.plan_prefills(&mut plan);
        assert!(plan.step.tokens() > 0 || self.is_idle(), "somebody can always get on");
        (plan.step.tokens() > 0).then_some(plan)
    }

    /// The head of the queue may take the place of sequences of lower priority, but not of its own.
    fn make_room_for_higher_priority(&mut self) {
        while let Some((head, sequence)) = self.waiting.first_key_value() {
            let outranked = self.running.last().is_some_and(|last| last.rank.priority > head.priority);
            if !outranked || self.fits(sequence) {
                break;
            }
            self.preempt(self.running.len() - 1);
        }
        self.short_of_blocks = false;
    }

    fn plan_decodes(&mut self, plan: &mut Plan) {
        let ranks: Vec<Rank> =
            self.running.iter().filter(|seq| seq.is_decoding()).map(|seq| seq.rank).collect();
        for rank in ranks {
            // It may have lost its place to one before it; or there is no block for it now, and it waits a step.
            if let Some(index) = self.index_of(rank) {
                self.plan_sequence(index, plan);
            }
        }
    }

    /// Prompts in rank order, those that run and those that wait alike; each takes all it can of the budget.
    fn plan_prefills(&mut self, plan: &mut Plan) {
        let mut admitting = true;
        while plan.step.tokens() < self.max_num_batched_tokens {
            let next = self.running.iter().position(|sequence| sequence.planned.is_none());
            let head = self.waiting.keys().next().copied().filter(|_| admitting && !self.short_of_blocks);
            let head_is_next = match (next, head) {
                (None, None) => break,
                (Some(next), Some(head)) => head < self.running[next].rank,
                (None, Some(_)) => true,
                (Some(_), None) => false,
            };
            if head_is_next {
                admitting = self.admit_head();
            } else if let Some(next) = next
                && !self.plan_sequence(next, plan)
            {
                break;
            }
        }
    }

    /// Gives the running sequence at `index` rows of this step, as many as budget and blocks allow.
    fn plan_sequence(&mut self, index: usize, plan: &mut Plan) -> bool {
        let budget = self.max_num_batched_tokens - plan.step.tokens();
        let sequence = &mut self.running[index];
        let (start, decoding) = (sequence.computed, sequence.is_decoding());
        let wanted = start + sequence.pending().min(budget);
        if wanted == start {
            return false;
        }
        let end = loop {
            let sequence = &mut self.running[index];
            let end = self.kv.grow(&mut sequence.table, start, wanted, &mut plan.batch.copies);
            if end == wanted {
                break end;
            }
            // Only those after it in rank, and not those whose rows are in this step already.
            match self.running.iter().rposition(|sequence| sequence.planned.is_none()) {
                Some(victim) if victim > index => self.preempt(victim),
                _ => break end,
            }
        };
        if end == start {
            return false;
        }
        let rows = end - start;
        self.running[index].plan_rows(rows, self.kv.block_size(), &mut plan.batch);
        *if decoding { &mut plan.step.decode_tokens } else { &mut plan.step.prefill_tokens } += rows;
        true
    }

    /// Moves the head of the queue to the running sequences if it fits, with what the cache has of it.
    fn admit_head(&mut self) -> bool {
        let Some(entry) = self.waiting.first_entry() else { return false };
        let rank = *entry.key();
        if !self.fits(&self.waiting[&rank]) {
            return false;
        }
        let Some(mut sequence) = self.waiting.remove(&rank) else { return false };
        sequence.table = self.kv.adopt_prefix(sequence.cacheable_prefix());
        sequence.computed = sequence.table.positions(self.kv.block_size());
        if std::mem::take(&mut sequence.reports_hit) {
            sequence.unreported_hit = Some(sequence.computed.min(sequence.prompt_len));
        }
        let place = self.running.partition_point(|other| other.rank < rank);
        self.running.insert(place, sequence);
        true
    }

    /// Whether there are seats for its samples and blocks for all its tokens, beside what the running ones still
    /// need for theirs and one block each to grow.
    fn fits(&self, sequence: &Sequence) -> bool {
        let seats: usize = self.running.iter().map(|running| running.samples.len()).sum();
        let held = self.kv.match_prefix(sequence.cacheable_prefix()).held;
        let needed = self.kv.blocks_for(sequence.len()) - held;
        let reserved: u32 = self.running.iter().map(|running| self.blocks_to_grow(running)).sum();
        seats + sequence.samples.len() <= self.max_num_seqs as usize
            && needed + reserved <= self.kv.available()
    }

    fn blocks_to_grow(&self, sequence: &Sequence) -> u32 {
        let longest = (sequence.len() + self.kv.block_size()).min(self.max_model_len);
        // Samples that are still one sequence will each copy the partly filled block they share.
        let needed = self.kv.blocks_for(longest) + sequence.samples.len() as u32 - 1;
        needed.saturating_sub(sequence.table.blocks().len() as u32)
    }

    /// Takes back all blocks of the running sequence at `index`; it is computed again when its turn comes.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        self.kv.release(std::mem::take(&mut sequence.table));
        sequence.computed = 0;
        sequence.reports_hit |= sequence.unreported_hit.take().is_some();
        sequence.extend_hashes(self.kv.block_size());
        self.short_of_blocks = true;
        self.enqueue(sequence);
    }

    /// Accounts for a computed step: caches full blocks, hands tokens out, parts samples, ends what is complete.
    pub fn commit(&mut self, step: Step, output: &StepOutput, now: Timestamp) -> Vec<Event> {
        self.observe(step, now);
        let mut events = Vec::with_capacity(output.samples.len() + 2);
        let mut born = Vec::new();
        let mut running = std::mem::take(&mut self.running);
        for sequence in &mut running {
            self.commit_sequence(sequence, output, &mut born, &mut events);
        }
        let sort = !born.is_empty();
        running.append(&mut born);
        for sequence in running.extract_if(.., |sequence| sequence.finished) {
            self.kv.release(sequence.table);
        }
        if sort {
            running.sort_unstable_by_key(|sequence| sequence.rank);
        }
        self.running = running;
        events
    }

    fn commit_sequence(
        &mut self,
        sequence: &mut Sequence,
        output: &StepOutput,
        born: &mut Vec<Sequence>,
        events: &mut Vec<Event>,
    ) {
        let Some(planned) = sequence.planned.take() else { return };
        sequence.computed += planned.rows;
        self.register(sequence);
        let request = sequence.request;
        if let Some(cached_tokens) = sequence.unreported_hit.take() {
            events.push(Event::Started { request, cached_tokens });
        }
        if !planned.scores.is_empty() {
            let (from, scores) = (sequence.next_score, output.scores[planned.scores].to_vec());
            sequence.next_score += scores.len() as u32;
            events.push(Event::PromptScored { request, from, scores });
        }
        let Some((own, others)) = output.samples[planned.samples].split_first() else { return };
        for (sample, drawn) in sequence.samples.split_off(1).into_iter().zip(others) {
            let mut fork = sequence.fork(sample, self.kv.fork(&sequence.table));
            fork.accept(drawn, self.max_model_len, events);
            born.push(fork);
        }
        sequence.accept(own, self.max_model_len, events);
    }

    fn register(&mut self, sequence: &mut Sequence) {
        let full = sequence.computed / self.kv.block_size();
        if full > sequence.table.registered() {
            sequence.extend_hashes(self.kv.block_size());
            let Sequence { table, scope, tokens, hashes, .. } = sequence;
            self.kv.register(table, Prefix { scope, tokens, hashes }, full);
        }
    }

    fn observe(&mut self, step: Step, now: Timestamp) {
        let took = now.since(step.started);
        if step.prefill_tokens > step.decode_tokens {
            self.prefill_rate.observe(step.tokens(), took);
        } else if step.prefill_tokens == 0 {
            self.decode_rate.observe(step.decode_tokens, took);
        }
    }

    /// What was cached and evicted since the last call.
    pub fn take_cache_changes(&mut self) -> Vec<CacheChange> {
        self.kv.take_changes()
    }

    /// Everything cached, parents before children.
    pub fn cache_snapshot(&self) -> Vec<RunStored> {
        self.kv.snapshot()
    }

    /// What a router wants to know.
    pub fn load(&self) -> SchedulerLoad {
        let samples = |sequence: &Sequence| sequence.samples.len() as u32;
        let prefilling = self.running.iter().filter(|sequence| !sequence.is_decoding());
        SchedulerLoad {
            queued_uncached_tokens: prefilling.map(|sequence| u64::from(sequence.pending())).sum::<u64>()
                + self.waiting.values().map(|sequence| u64::from(sequence.uncached)).sum::<u64>(),
            waiting: self.waiting.values().map(samples).sum(),
            running: self.running.iter().map(samples).sum(),
            free_blocks: self.kv.available(),
            prefill_tokens_per_second: self.prefill_rate.per_second(),
            decode_tokens_per_second: self.decode_rate.per_second(),
        }
    }

    fn index_of(&self, rank: Rank) -> Option<usize> {
        self.running.binary_search_by_key(&rank, |sequence| sequence.rank).ok()
    }
}
