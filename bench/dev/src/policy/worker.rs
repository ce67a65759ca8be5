//! A simulated worker: prefills one prompt at a time and decodes at a constant rate, or computes in steps
//! of both (see [`stepping`](super::stepping)). It evicts the least recently used leaf of its cache, and
//! reports like a real worker.

use std::collections::{BTreeMap, HashMap, VecDeque};

use skein_proto::load::{Load, LoadReport};
use skein_proto::runs::{CacheChange, RunStored, RunTruncated};

use super::steps::Steps;

/// Speed and size of a simulated worker.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Prefill time per token, in nanoseconds.
    pub prefill_ns: u64,
    /// Time between two output tokens, in nanoseconds.
    pub token_ns: u64,
    /// Blocks in the cache.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: u32,
    /// Most concurrent sequences.
    pub seats: u32,
    /// Most prompt tokens in a step, which all running answers take part in; 0 = no steps.
    pub step_tokens: u32,
}

/// A request's place: the router that sent it, and that router's number for it.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    /// Index of the router.
    pub router: usize,
    /// Sequence number among its placements.
    pub placement: u64,
}

/// A prompt: hashes of its whole blocks, and its length.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Hashes, first block first.
    pub blocks: &'a [u64],
    /// Tokens.
    pub tokens: u32,
}

/// A queued request; the number is the caller's.
#[derive(Debug)]
pub(super) struct Queued {
    pub request: usize,
    /// Tokens that were not cached on arrival.
    pub uncached: u64,
    /// Tokens to be computed.
    pub left: u64,
}

/// State of a simulated worker.
#[derive(Debug)]
pub struct SimWorker {
    pub(super) machine: Machine,
    pub(super) cache: Cache,
    pub(super) queue: VecDeque<Queued>,
    /// End of the prefill of the first queued request, or of the step.
    pub(super) busy_until: u64,
    pub(super) running: u32,
    pub(super) steps: Steps,
    /// Last placement that arrived from each router.
    seen: Vec<u64>,
    reports: u64,
    /// Ratio of the rates that it reports to its actual ones.
    measured: f32,
}

impl SimWorker {
    /// An idle worker with an empty cache. It reports `measured` times its actual rates to `routers` routers.
    pub fn new(machine: Machine, measured: f32, routers: usize) -> Self {
        Self {
            machine,
            cache: Cache { capacity: machine.blocks, ..Cache::default() },
            queue: VecDeque::new(),
            busy_until: 0,
            running: 0,
            steps: Steps::default(),
            seen: vec![0; routers],
            reports: 0,
            measured,
        }
    }

    /// Last placement that arrived from `router`; 0 = none.
    pub fn seen(&self, router: usize) -> u64 {
        self.seen[router]
    }

    /// Exact time to first token of a prompt that arrives now, in nanoseconds.
    pub fn first_token_after(&self, now: u64, blocks: &[u64], prompt_tokens: u32) -> u64 {
        let queued: u64 = self.queue.iter().skip(1).map(|queued| queued.left).sum();
        let ahead = self.busy_until.saturating_sub(now) + queued * self.machine.prefill_ns;
        ahead + self.uncached(blocks, prompt_tokens) * self.machine.prefill_ns
    }

    pub(super) fn uncached(&self, blocks: &[u64], prompt_tokens: u32) -> u64 {
        let held = self.cache.leading(blocks) as u64 * u64::from(self.machine.block_size);
        u64::from(prompt_tokens).saturating_sub(held).max(1)
    }

    /// Number of blocks in its cache.
    pub fn cached_blocks(&self) -> usize {
        self.cache.held.len()
    }

    /// Adds a request, placed by a router under a number; returns the end of its prefill if that starts
    /// immediately.
    pub fn arrive(&mut self, now: u64, request: usize, placed: Placed, prompt: Prompt<'_>) -> Option<u64> {
        let Placed { router, placement } = placed;
        let uncached = self.uncached(prompt.blocks, prompt.tokens);
        self.queue.push_back(Queued { request, uncached, left: uncached });
        self.seen[router] = self.seen[router].max(placement);
        if self.machine.step_tokens > 0 {
            return (!self.steps.is_under_way()).then(|| self.begin_step(now)).flatten();
        }
        (self.queue.len() == 1).then(|| self.begin(now, uncached))
    }

    fn begin(&mut self, now: u64, uncached: u64) -> u64 {
        self.busy_until = now + uncached * self.machine.prefill_ns;
        self.busy_until
    }

    /// Handles the end of the first queued request's prefill.
    pub fn prefilled<'a>(&mut self, now: u64, prompt: impl Fn(usize) -> Prompt<'a>) -> Option<Prefilled> {
        let done = self.queue.pop_front()?;
        self.running += 1;
        let Prompt { blocks, tokens } = prompt(done.request);
        let change = self.cache.store(blocks);
        let cached_tokens = u64::from(tokens).saturating_sub(done.uncached);
        let next = self.queue.front().map(|next| next.request);
        // Blocks cached since the next request arrived count for it.
        let next_ends = next.map(|next| {
            let Prompt { blocks, tokens } = prompt(next);
            let uncached = self.uncached(blocks, tokens);
            if let Some(front) = self.queue.front_mut() {
                (front.uncached, front.left) = (uncached, uncached);
            }
            self.begin(now, uncached)
        });
        Some(Prefilled { request: done.request, cached_tokens, change, next_ends })
    }

    /// Handles the end of an answer.
    pub fn ended(&mut self) {
        self.running -= 1;
    }

    /// Load report, as a real worker sends it to a router that has placed nothing.
    pub fn report(&mut self, now: u64) -> LoadReport {
        self.reports += 1;
        let machine = &self.machine;
        let left = self.busy_until.saturating_sub(now) / machine.prefill_ns.max(1);
        let behind: u64 = self.queue.iter().skip(1).map(|queued| queued.left).sum();
        let per_second = |nanoseconds: u64| 1e9 / nanoseconds.max(1) as f32;
        let is_idle = self.queue.is_empty();
        let load = if machine.step_tokens > 0 {
            let queued_uncached_tokens = self.queue.iter().map(|queued| queued.left).sum();
            // The first prompt is in the step.
            let (waiting, running) = (self.queue.len().saturating_sub(1), self.running + u32::from(!is_idle));
            let (prefill, decode) = self.steps.rates();
            Load {
                queued_uncached_tokens,
                waiting: waiting as u32,
                running,
                prefill_tokens_per_second: prefill,
                decode_tokens_per_second: decode,
                ..Load::default()
            }
        } else {
            Load {
                queued_uncached_tokens: if is_idle { 0 } else { left + behind },
                waiting: self.queue.len() as u32,
                running: self.running,
                prefill_tokens_per_second: per_second(machine.prefill_ns),
                decode_tokens_per_second: per_second(machine.token_ns) * self.running.max(1) as f32,
                ..Load::default()
            }
        };
        LoadReport {
            load: Load {
                free_blocks: machine.blocks as u32,
                prefill_tokens_per_second: load.prefill_tokens_per_second * self.measured,
                decode_tokens_per_second: load.decode_tokens_per_second * self.measured,
                ..load
            },
            step: self.reports,
            ..LoadReport::default()
        }
    }
}

/// Result of a completed prefill.
#[derive(Debug)]
pub struct Prefilled {
    /// The request's number.
    pub request: usize,
    /// Number of cached prompt tokens.
    pub cached_tokens: u64,
    /// Blocks added to the cache and evicted from it.
    pub change: CacheChange,
    /// End of the next prefill, if one has started.
    pub next_ends: Option<u64>,
}

/// Prefix cache that evicts the least recently used block. A prompt's last block is touched first, so that
/// leaves are evicted before their parents.
#[derive(Debug, Default)]
pub(super) struct Cache {
    capacity: usize,
    held: HashMap<u64, Held>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    next_handle: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    used: u64,
    handle: u64,
    depth: u32,
}

impl Cache {
    fn leading(&self, blocks: &[u64]) -> usize {
        blocks.partition_point(|block| self.held.contains_key(block))
    }

    pub(super) fn store(&mut self, blocks: &[u64]) -> CacheChange {
        let blocks = &blocks[..blocks.len().min(self.capacity)];
        let mut change = CacheChange::default();
        let depth = self.leading(blocks);
        self.touch(&blocks[..depth]);
        while self.held.len() + (blocks.len() - depth) > self.capacity {
            change.truncated.extend(self.evict());
        }
        // A prompt longer than all others together may have evicted its own beginning.
        let depth = self.leading(blocks);
        if depth < blocks.len() {
            self.next_handle += 1;
            let handle = self.next_handle;
            let parent = depth.checked_sub(1).map_or(0, |last| self.held[&blocks[last]].handle);
            for (block, at) in blocks[depth..].iter().zip(depth as u32..) {
                self.held.insert(*block, Held { used: 0, handle, depth: at });
            }
            let hashes = blocks[depth..].to_vec();
            change.stored.push(RunStored { handle, parent, depth: depth as u32, hashes });
        }
        self.touch(blocks);
        change
    }

    fn touch(&mut self, blocks: &[u64]) {
        for block in blocks.iter().rev() {
            let Some(held) = self.held.get_mut(block) else { continue };
            self.by_use.remove(&held.used);
            self.uses += 1;
            held.used = self.uses;
            self.by_use.insert(self.uses, *block);
        }
    }

    fn evict(&mut self) -> Option<RunTruncated> {
        let (_, block) = self.by_use.pop_first()?;
        let held = self.held.remove(&block)?;
        Some(RunTruncated { handle: held.handle, new_end: held.depth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine =
        Machine { prefill_ns: 1000, token_ns: 5000, blocks: 6, block_size: 16, seats: 8, step_tokens: 0 };

    #[test]
    fn prompts_wait_for_each_other_and_pay_only_for_uncached_tokens() {
        let prompts: [(&[u64], u32); 3] = [(&[1, 2], 40), (&[1, 2, 3], 50), (&[7], 20)];
        let prompts = prompts.map(|(blocks, tokens)| Prompt { blocks, tokens });
        let prompt = |request: usize| prompts[request];
        let mut worker = SimWorker::new(MACHINE, 1.0, 1);
        assert_eq!(worker.arrive(0, 0, Placed { router: 0, placement: 1 }, prompts[0]), Some(40_000));
        assert_eq!(worker.arrive(10, 1, Placed { router: 0, placement: 2 }, prompts[1]), None);
        assert_eq!(worker.first_token_after(1000, &[7], 20), 39_000 + 50_000 + 20_000);
        assert_eq!(worker.report(1000).load.queued_uncached_tokens, 39 + 50);
        let first = worker.prefilled(40_000, prompt).expect("the first");
        assert_eq!((first.request, first.cached_tokens, first.next_ends), (0, 0, Some(58_000)));
        let second = worker.prefilled(58_000, prompt).expect("the second");
        assert_eq!((second.cached_tokens, second.next_ends), (32, None));
        assert_eq!(second.change.stored[0].depth, 2);
        assert_eq!((second.change.stored[0].parent, &second.change.stored[0].hashes[..]), (1, &[3][..]));
        assert_eq!(worker.report(60_000).load.running, 2);
    }

    #[test]
    fn leaves_are_evicted_before_their_parents() {
        let mut cache = Cache { capacity: 6, ..Cache::default() };
        cache.store(&[1, 2, 3]);
        cache.store(&[1, 4, 5]);
        let change = cache.store(&[6, 7]);
        // 3 and 2 are the oldest leaves; the shared block 1 was used since.
        assert_eq!(change.truncated, [RunTruncated { handle: 1, new_end: 2 }]);
        assert_eq!((cache.leading(&[1, 2, 3]), cache.leading(&[1, 4, 5]), cache.held.len()), (2, 3, 6));
        let all: Vec<u64> = (10..30).collect();
        cache.store(&all);
        assert_eq!((cache.held.len(), cache.leading(&all)), (6, 6), "a long prompt fills it");
    }
}
