//! Which tokens the next step computes. Pure: requests and drawn tokens in, batches and events out; it knows no
//! clock, no tensor and no protobuf.
//!
//! There is no prefill phase and no decode phase, only one token budget a step: decoding sequences take one row
//! each, then prompts take what is left, one after another, so that first tokens come one by one instead of all
//! late; short ones may overtake long ones (`overtake`). The budget shrinks where so many tokens would take too long: a
//! long prompt does not stall the streams. Out of blocks, the last in rank gives its blocks back and is computed again
//! later.
//!
//! A step may be planned while those before it are under way (and commits follow in the same order), so that the
//! device finds its next step when it ends one. How many, the engine decides. The tokens that steps under way draw are not
//! known then, but all that a plan needs of them is: where they stand, whether `max_tokens` ends the sample with them, whether
//! they may be stop tokens. The batch names their places ([`Batch::carried`](crate::backend::Batch::carried)). What cannot be
//! foreseen is paid for: a sample that draws a stop token has a row in each step that is under way, whose result is dropped;
//! and a sequence whose samples part, or whose draft is verified, waits for the result (`ahead` says why one waits).
//!
//! With [`Drafts`] a stream's rows go on behind its last token: the backend verifies them and says how many are right. The
//! table is cut back to what is right, so that blocks, cache and tokens are those of plain decoding.
//!
//! Blocks are free at once, also those that a step under way reads and writes. That is safe because steps take effect
//! in the order of their launch: whoever gets such a block writes it in a later step. Within one step nobody loses
//! blocks after their rows were planned. And a block is cached only when its step is committed: its tokens are known
//! then, its keys and values computed. Rows past the end of a stopped sample do not reach it, for they write behind the
//! last known token, and only blocks before that are full. Whatever moves blocks beside the steps must keep that order.
//!
//! Why nothing waits forever: `Rank` orders everybody, the first in rank may preempt all that are not yet in
//! the step, and one sequence alone always fits (`max_model_len` is at most what the pool holds). Only a [`Hold`] has no
//! end of its own: whoever sets one lifts it.

mod ahead;
mod audit;
mod budget;
mod commit;
mod drafts;
mod overtake;
mod pace;
mod plan;
mod queues;
mod rate;
mod request;
mod rows;
mod sequence;
mod shares;
mod step;
mod step_time;
#[cfg(test)]
mod tests;

use skein_proto::block_hash::BlockHash;
use skein_proto::finish::FinishReason;
use skein_proto::load::Load;
use skein_proto::runs::{CacheChange, RunStored};

pub use audit::Broken;
pub use drafts::{Drafts, Propose};
pub use plan::Plan;
pub use request::{Accepted, Event, Hold, NewRequest, NewSample, Refusal, RequestKey};
pub use step::Step;

use crate::TokenId;
use crate::config::SchedulerConfig;
use crate::kv_cache::{KvCache, Prefix};
use pace::Pace;
use queues::Queues;
use sequence::Sequence;

/// The requests of one worker.
#[derive(Debug)]
pub struct Scheduler {
    kv: KvCache,
    queues: Queues,
    pace: Pace,
    limits: Limits,
    drafts: Option<Drafts>,
    arrivals: u64,
    planned_steps: u64,
    committed_steps: u64,
    /// Somebody lost blocks in this step: nobody new is let in.
    short_of_blocks: bool,
    share_prefixes: bool,
}

/// What is fixed from the start.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Tokens in a block.
    block_size: u32,
    /// Tokens of the longest sequence.
    max_model_len: u32,
    /// Samples that run at once.
    max_num_seqs: u32,
    /// Rows of a step.
    max_num_batched_tokens: u32,
    /// Sequences that wait.
    max_waiting: u32,
}

impl Scheduler {
    /// A scheduler over `kv_blocks` blocks for sequences of at most `max_model_len` tokens, which must fit.
    pub fn new(config: &SchedulerConfig, kv_blocks: u32, max_model_len: u32) -> Self {
        let kv = KvCache::new(kv_blocks, config.block_size, config.enable_prefix_caching);
        assert!(kv.blocks_for(max_model_len) <= kv_blocks, "the longest sequence fits into the KV cache");
        let limits = Limits {
            block_size: config.block_size,
            max_model_len,
            // Every running sequence gets its row in every step.
            max_num_seqs: config.max_num_seqs.min(config.max_num_batched_tokens).max(1),
            max_num_batched_tokens: config.max_num_batched_tokens.max(1),
            max_waiting: config.max_num_queued_reqs,
        };
        Self {
            kv,
            queues: Queues::default(),
            pace: Pace::default(),
            limits,
            drafts: None,
            arrivals: 0,
            planned_steps: 0,
            committed_steps: 0,
            short_of_blocks: false,
            share_prefixes: config.enable_prefix_caching,
        }
    }

    /// From now on streams get drafts, for a backend that verifies them.
    pub fn set_drafts(&mut self, drafts: Drafts) {
        self.drafts = Some(drafts);
    }

    /// Whether its batches ask to verify drafts.
    pub fn drafts(&self) -> bool {
        self.drafts.is_some()
    }

    /// Takes a request, or says why not.
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
            let mut sequence =
                Sequence::new(&request, self.limits.max_model_len, self.arrivals, samples, delivered, first);
            if sequence.is_full() {
                sequence.finish(FinishReason::Length, &mut accepted.events);
                continue;
            }
            sequence.extend_hashes(self.limits.block_size);
            if first && self.share_prefixes {
                (accepted.cached_blocks, accepted.uncached_hashes) = self.prompt_hashes(&sequence);
            }
            first = false;
            self.enqueue(sequence);
        }
        Ok(accepted)
    }

    fn enqueue(&mut self, mut sequence: Sequence) {
        let cached = self.kv.match_prefix(sequence.cacheable_prefix()).blocks * self.limits.block_size;
        sequence.uncached = sequence.len() - cached;
        self.queues.waiting.insert(sequence.rank, sequence);
    }

    fn admit_or_refuse(&self, fresh: u32) -> Result<(), Refusal> {
        let waiting = self.queues.waiting.len() as u32;
        let Limits { max_waiting, max_num_seqs, .. } = self.limits;
        if waiting >= max_waiting {
            return Err(Refusal::QueueFull { waiting, limit: max_waiting });
        }
        if fresh > max_num_seqs {
            return Err(Refusal::TooManySamples { got: fresh, limit: max_num_seqs });
        }
        Ok(())
    }

    /// How many leading prompt blocks are cached, and the hashes of those that are not.
    fn prompt_hashes(&self, sequence: &Sequence) -> (u32, Vec<BlockHash>) {
        let full = (sequence.prompt_len / self.limits.block_size) as usize;
        let hashes = &sequence.hashes[..full];
        let prefix = Prefix { scope: &sequence.scope, tokens: &sequence.tokens, hashes };
        let cached = self.kv.match_prefix(prefix).blocks;
        (cached, hashes[cached as usize..].to_vec())
    }

    /// Ends one sample; `None` when it is not here. Its blocks are free at once, and what a step under way
    /// draws for it is dropped.
    pub fn abort(&mut self, request: RequestKey, sample: u32) -> Option<Event> {
        let rank = self.queues.rank_of(request, sample)?;
        let sequence = self.queues.get_mut(rank)?;
        let position = sequence.len();
        sequence.samples.retain(|&other| other != sample);
        if sequence.samples.is_empty()
            && let Some(sequence) = self.queues.remove(rank)
        {
            self.kv.release(sequence.table);
        }
        Some(Event::Finished { request, sample, position, reason: FinishReason::Abort })
    }

    /// Forgets a request nobody listens to any more, as [`abort`](Self::abort) does with one sample.
    pub fn cancel(&mut self, request: RequestKey) {
        self.queues.waiting.retain(|_, sequence| sequence.request != request);
        for index in (0..self.queues.running.len()).rev() {
            if self.queues.running[index].request == request {
                let sequence = self.queues.running.remove(index);
                self.kv.release(sequence.table);
            }
        }
    }

    /// This sample gets no more rows until `hold` is lifted; what is under way of it goes on, and others do. False when it is
    /// not here. Samples that have not parted yet are held together, and each is lifted by itself afterwards.
    pub fn hold(&mut self, request: RequestKey, sample: u32, hold: Hold) -> bool {
        let sequence = self.queues.rank_of(request, sample).and_then(|rank| self.queues.get_mut(rank));
        sequence.is_some_and(|sequence| {
            sequence.hold = Some(hold);
            true
        })
    }

    /// Lifts `hold`; false when the sample is not under it: an answer that comes late lifts nothing else.
    pub fn lift(&mut self, request: RequestKey, sample: u32, hold: Hold) -> bool {
        let sequence = self.queues.rank_of(request, sample).and_then(|rank| self.queues.get_mut(rank));
        sequence.is_some_and(|sequence| sequence.hold.take_if(|held| *held == hold).is_some())
    }

    fn holds_any(&self) -> bool {
        self.queues.running.iter().any(|sequence| sequence.hold.is_some())
    }

    /// Most samples that run at once: as configured, but no more than a step has tokens.
    pub fn max_num_seqs(&self) -> u32 {
        self.limits.max_num_seqs
    }

    /// Nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.queues.is_empty()
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
    pub fn load(&self) -> Load {
        let samples = |sequence: &Sequence| sequence.samples.len() as u32;
        let Queues { running, waiting } = &self.queues;
        let prefilling = running.iter().filter(|sequence| !sequence.is_streaming());
        Load {
            queued_uncached_tokens: prefilling.map(|sequence| u64::from(sequence.uncomputed())).sum::<u64>()
                + waiting.values().map(|sequence| u64::from(sequence.uncached)).sum::<u64>(),
            waiting: waiting.values().map(samples).sum(),
            running: running.iter().map(samples).sum(),
            free_blocks: self.kv.available(),
            prefill_tokens_per_second: self.pace.prefill.per_second(),
            decode_tokens_per_second: self.pace.decode.per_second(),
        }
    }
}
