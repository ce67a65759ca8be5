//! Decides which tokens the next step computes. Pure: requests and drawn tokens in, batches and events out;
//! no clock, no tensors, no protobuf.
//!
//! There is no prefill phase and no decode phase, only one token budget a step. Decoding sequences take one
//! row each; prompts share the rest in rank order, so first tokens come one by one instead of all late. Short
//! prompts may overtake long ones (`overtake`). The budget shrinks when a full step would take too long, so
//! that a long prompt does not stall the streams. When blocks run out, the last sequence in rank is
//! preempted: it gives its blocks back and is recomputed later.
//!
//! Requests of the lowest priority are background work (`background`): they get rows only where they hardly
//! delay others.
//!
//! A step may be planned while earlier ones are in flight (the engine decides how many), so that the
//! device has its next step when it finishes one. Commits follow in the order of the plans. A plan does
//! not need the values of tokens still being drawn. It needs only their positions, whether `max_tokens`
//! ends the sample with them, and whether they may be stop tokens. The batch says where they will come
//! from ([`Batch::carried`](crate::backend::Batch::carried)). What a plan cannot foresee costs something:
//! after a stop token, the sample still has a row in each step in flight, and those results are dropped.
//! A sequence whose samples fork, or whose draft is being verified, waits for the result (`in_flight`
//! lists the reasons).
//!
//! A pipeline has as many steps in flight as stages, and no tokens are carried
//! ([`set_stages`](Scheduler::set_stages)).
//!
//! With [`Drafts`], a stream's rows continue past its last token. The backend verifies them and says how
//! many are right, and the block table is cut back to those, so that blocks, cache and tokens equal those
//! of plain decoding.
//!
//! A released block is free at once, even if a step in flight still reads or writes it. That is safe because
//! steps take effect in launch order: the block's next owner writes it in a later step. Within one step, no
//! sequence loses blocks after its rows were planned. A block is cached only when its step is committed,
//! because only then are its tokens known and its keys and values computed. Rows past the end of a stopped
//! sample never reach a cached block: they write behind the last known token, and only blocks before it are
//! full. Code that moves blocks outside the steps must keep this order.
//!
//! If the model has recurrent layers, a sequence also holds a slot for its state, which rows change in place.
//! A state cannot be cut back, so a step keeps draft rows apart, and copies of the state are kept where later
//! prompts may resume (`checkpoints`). A copy is made within the step that reaches its position, and cached
//! with the block that ends there. Copies into a sequence's own slot are done at the start of the next step,
//! in order, so that a slot that changes hands before is read first.
//!
//! Nothing waits forever. `Rank` is a total order, and the first in rank may preempt every sequence that is
//! not yet in the step. One sequence alone always fits, because `max_model_len` is at most what the pool
//! holds.

mod audit;
mod background;
mod budget;
mod checkpoints;
mod class;
mod commit;
mod drafts;
mod fair_share;
mod in_flight;
mod limits;
mod model_drafts;
mod overtake;
mod pace;
mod plan;
mod planned_rows;
mod queues;
mod rate;
mod request;
mod rows;
mod sequence;
mod step;
mod step_time;
#[cfg(test)]
mod tests;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::BlockHash;
use skein_proto::finish::FinishReason;
use skein_proto::load::{Load, LoadDetail};
use skein_proto::runs::{CacheChange, Gaps, RunStored};

pub use audit::Violation;
pub use class::BACKGROUND;
pub use drafts::{Drafts, Propose};
pub use model_drafts::{ModelDraft, ModelText};
pub use request::{Accepted, NewRequest, NewSample, NotAdmitted, Note, RequestEvent, RequestKey};
pub use step::{Plan, Step};

use crate::TokenId;
use crate::backend::{KvBlocks, MaskSlot};
use crate::config::SchedulerConfig;
use crate::kv_cache::{KvCache, Prefix, StateCounts};
use limits::Limits;
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
    /// A sequence was preempted in this step, so none is admitted.
    short_of_blocks: bool,
    /// Last time with a request other than a background one.
    others_seen: Option<Timestamp>,
    /// Sequences preempted since the start.
    preemptions: u64,
    /// Tokens of sequences since the start.
    served: Served,
    /// Notes not yet taken; at most one per running sequence and step.
    notes: Vec<Note>,
    share_prefixes: bool,
}

/// Counts of tokens since the start.
#[derive(Debug, Clone, Copy, Default)]
struct Served {
    /// Of prompts that began to run.
    prompt: u64,
    /// Those of them that were found in the cache.
    cached: u64,
    /// Generated.
    output: u64,
}

impl Scheduler {
    /// A scheduler over `kv_blocks` for sequences of at most `max_model_len` tokens, which must fit.
    pub fn new(config: &SchedulerConfig, kv_blocks: impl Into<KvBlocks>, max_model_len: u32) -> Self {
        let kv = KvCache::new(kv_blocks, config.block_size, config.enable_prefix_caching);
        let fits = kv.blocks_for(max_model_len) <= kv.total()
            && kv.windows_for(max_model_len) <= kv.available_windows();
        assert!(fits, "the longest sequence fits into the KV cache");
        let limits = Limits {
            block_size: config.block_size,
            max_model_len,
            // Every running sequence gets its row in every step.
            max_num_seqs: config
                .max_num_seqs
                .min(config.max_num_batched_tokens)
                .min(kv.state_slots().unwrap_or(u32::MAX))
                .max(1),
            max_num_batched_tokens: config.max_num_batched_tokens.max(1),
            max_waiting: config.max_num_queued_reqs,
            whole_prompts: false,
            stages: 1,
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
            others_seen: None,
            preemptions: 0,
            served: Served::default(),
            notes: Vec::new(),
            share_prefixes: config.enable_prefix_caching,
        }
    }

    /// Plans for a pipeline of `stages` stages, each running its own step. A step's tokens are known only
    /// after all stages, so no step carries tokens over from the one before: a stream skips steps until its
    /// last token is known. Each step gets an even part of the streams, so that all stages have work.
    pub fn set_stages(&mut self, stages: u32) {
        self.limits.stages = stages.max(1);
    }

    /// Puts all rows of a prompt into one step from now on, for a model whose tokens attend to later ones, or
    /// whose vector is made of all rows. A step with only one prompt may then have more rows than
    /// `max_num_batched_tokens`. Nothing may be cached: what a row computes depends on the rows after it.
    pub fn set_whole_prompts(&mut self) {
        assert!(!self.share_prefixes, "rows of a prompt read whole are not cached");
        self.limits.whole_prompts = true;
    }

    /// Gives streams drafts from now on; the backend must be able to verify them.
    pub fn set_drafts(&mut self, drafts: Drafts) {
        self.drafts = Some(drafts);
    }

    /// Whether batches may contain drafts to verify.
    pub fn drafts(&self) -> bool {
        self.drafts.is_some()
    }

    /// Accepts a request and queues its samples: the fresh ones as one sequence, each resumed one as its own.
    pub fn submit(&mut self, request: NewRequest) -> Result<Accepted, NotAdmitted> {
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
        // In rank order, so that the first one runs first.
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
            sequence.carries = self.limits.stages == 1;
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

    fn admit_or_refuse(&self, fresh: u32) -> Result<(), NotAdmitted> {
        let waiting = self.queues.waiting.len() as u32;
        let Limits { max_waiting, max_num_seqs, .. } = self.limits;
        if waiting >= max_waiting {
            return Err(NotAdmitted::QueueFull { waiting, limit: max_waiting });
        }
        if fresh > max_num_seqs {
            return Err(NotAdmitted::TooManySamples { got: fresh, limit: max_num_seqs });
        }
        Ok(())
    }

    /// Number of leading prompt blocks that are cached, and the hashes of the others.
    fn prompt_hashes(&self, sequence: &Sequence) -> (u32, Vec<BlockHash>) {
        let full = (sequence.prompt_len / self.limits.block_size) as usize;
        let hashes = &sequence.hashes[..full];
        let prefix = Prefix { scope: &sequence.scope, tokens: &sequence.tokens, hashes };
        let cached = self.kv.match_prefix(prefix).blocks;
        (cached, hashes[cached as usize..].to_vec())
    }

    /// Ends one sample; `None` if it is not here. Its blocks are free at once, and whatever a step in flight
    /// draws for it is dropped.
    pub fn abort(&mut self, request: RequestKey, sample: u32) -> Option<RequestEvent> {
        self.end(request, sample, FinishReason::Abort)
    }

    /// Ends one sample for `reason`; otherwise like [`abort`](Self::abort).
    pub fn end(&mut self, request: RequestKey, sample: u32, reason: FinishReason) -> Option<RequestEvent> {
        let rank = self.queues.rank_of(request, sample)?;
        let sequence = self.queues.get_mut(rank)?;
        let position = sequence.len();
        sequence.samples.retain(|&other| other != sample);
        if sequence.samples.is_empty()
            && let Some(sequence) = self.queues.remove(rank)
        {
            self.remember(&sequence);
            self.kv.release(sequence.table);
        }
        Some(RequestEvent::Finished { request, sample, position, reason })
    }

    /// Drops a whole request without events, because no client reads it.
    pub fn cancel(&mut self, request: RequestKey) {
        self.queues.waiting.retain(|_, sequence| sequence.request != request);
        for index in (0..self.queues.running.len()).rev() {
            if self.queues.running[index].request == request {
                let sequence = self.queues.running.remove(index);
                self.kv.release(sequence.table);
            }
        }
    }

    /// Sets the mask for the next draw of a constrained sample; required before each of its draws is planned.
    /// False if the sample is not here.
    pub fn set_mask(&mut self, request: RequestKey, sample: u32, mask: MaskSlot) -> bool {
        let sequence = self.queues.rank_of(request, sample).and_then(|rank| self.queues.get_mut(rank));
        sequence.is_some_and(|sequence| {
            sequence.masks.retain(|(of, _)| *of != sample);
            sequence.masks.push((sample, mask));
            true
        })
    }

    /// Stores the tokens that a sample's grammar forces next, as guesses for its next draft.
    pub fn set_forced(&mut self, request: RequestKey, sample: u32, tokens: Vec<TokenId>) {
        let sequence = self.queues.rank_of(request, sample).and_then(|rank| self.queues.get_mut(rank));
        sequence.into_iter().for_each(|sequence| sequence.forced = (sequence.len(), tokens.clone()));
    }

    /// Most samples running at once: the configured limit, but at most one for each token of a step.
    pub fn max_num_seqs(&self) -> u32 {
        self.limits.max_num_seqs
    }

    /// Takes the notes since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Sequences preempted since the start.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// True if nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// Cache insertions and evictions since the last call.
    pub fn take_cache_changes(&mut self) -> Vec<CacheChange> {
        self.kv.take_changes()
    }

    /// Every cached run, parents before children.
    pub fn cache_snapshot(&self) -> Vec<RunStored> {
        self.kv.snapshot()
    }

    /// Cached blocks that layers with a window cannot share, or those after which recurrent layers have a
    /// state.
    pub fn cache_gaps(&self) -> Gaps {
        self.kv.gaps()
    }

    /// Free, cached and held slots for states, if the model has recurrent layers.
    pub fn state_counts(&self) -> Option<StateCounts> {
        self.kv.state_counts()
    }

    /// Queue lengths, free blocks and speeds, as routers use them for placement.
    pub fn load(&self) -> Load {
        let samples = |sequence: &Sequence| sequence.samples.len() as u32;
        let Queues { running, waiting } = &self.queues;
        let prefilling = running.iter().filter(|sequence| !sequence.is_streaming());
        Load {
            queued_uncached_tokens: prefilling.map(|sequence| u64::from(sequence.uncomputed())).sum::<u64>()
                + waiting.values().map(|sequence| u64::from(sequence.uncached)).sum::<u64>(),
            waiting: waiting.values().map(samples).sum(),
            running: running.iter().map(samples).sum(),
            free_blocks: self.kv.available_of_both(),
            prefill_tokens_per_second: self.pace.prefill.per_second(),
            decode_tokens_per_second: self.pace.decode.per_second(),
            detail: self.detail(),
        }
    }

    fn detail(&self) -> LoadDetail {
        let (blocks, served) = (self.kv.counts(), self.served);
        LoadDetail {
            cached_blocks: blocks.cached,
            shared_blocks: blocks.shared,
            step_seconds: self.pace.step_seconds,
            prompt_tokens: served.prompt,
            cached_prompt_tokens: served.cached,
            output_tokens: served.output,
        }
    }
}
