//! The index against a naive model: for each worker, the set of token prefixes in its cache.
//! `TEST_INDEX_SEEDS=10000` runs more seeds than usual.

mod ends;
mod expectations;

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_proto::block_hash;
use skein_proto::runs::{CacheChange, Gaps, RunStored, RunTruncated};

use super::expectations::MAX_BLOCKS_EACH;
use super::*;

fn seeds() -> u64 {
    std::env::var("TEST_INDEX_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100)
}

/// Hits of one worker.
fn leading_blocks(index: &mut PrefixIndex, worker: WorkerId, chain: &[BlockHash]) -> usize {
    let (column, mut hits) = (index.column(worker), Hits::default());
    index.search(chain, &mut hits);
    hits.blocks(column) as usize
}

/// In these tests a block is one small number, and a prefix a list of them.
type Prefix = Vec<u8>;

/// The chained hash of each block of a prefix.
fn hashes(prefix: &[u8]) -> Vec<BlockHash> {
    let tokens: Vec<u32> = prefix.iter().map(|&block| u32::from(block)).collect();
    block_hash::chain(1, &tokens, 1)
}

/// A worker's cache that follows the protocol: prefix-closed, in runs.
#[derive(Default)]
struct Cache {
    held: BTreeSet<Prefix>,
    /// (handle, parent, depth, the whole prefix up to the run's end)
    runs: Vec<(u64, u64, usize, Prefix)>,
    next_handle: u64,
}

impl Cache {
    /// Caches all of `prefix`, continuing what is held; returns the report for routers.
    fn store(&mut self, prefix: &[u8]) -> Option<RunStored> {
        let depth = (0..=prefix.len()).rev().find(|&end| end == 0 || self.held.contains(&prefix[..end]))?;
        if depth == prefix.len() {
            return None;
        }
        self.held.extend((depth + 1..=prefix.len()).map(|end| prefix[..end].to_vec()));
        let stored = |handle, parent| {
            Some(RunStored { handle, parent, depth: depth as u32, hashes: hashes(prefix)[depth..].to_vec() })
        };
        if let Some(run) = self.runs.iter_mut().find(|run| run.3 == prefix[..depth]) {
            run.3 = prefix.to_vec();
            return stored(run.0, run.1);
        }
        let holds = |run: &&(u64, u64, usize, Prefix)| {
            run.2 < depth && run.3.len() >= depth && run.3[..depth] == prefix[..depth]
        };
        let parent = self.runs.iter().find(holds).map_or(0, |run| run.0);
        self.next_handle += 1;
        self.runs.push((self.next_handle, parent, depth, prefix.to_vec()));
        stored(self.next_handle, parent)
    }

    /// Evicts some leaves; returns the report for routers.
    fn evict(&mut self, rng: &mut StdRng) -> Option<RunTruncated> {
        let leaves: Vec<usize> = (0..self.runs.len())
            .filter(|&index| self.runs.iter().all(|run| run.1 != self.runs[index].0))
            .collect();
        let index = *leaves.get(rng.random_range(0..leaves.len().max(1)))?;
        let (handle, _, depth, prefix) = &mut self.runs[index];
        let end = rng.random_range(*depth..prefix.len());
        self.held.retain(|held| held.len() <= end || !prefix.starts_with(held));
        prefix.truncate(end);
        let truncated = RunTruncated { handle: *handle, new_end: end as u32 };
        if end == *depth {
            self.runs.remove(index);
        }
        Some(truncated)
    }

    fn snapshot(&self) -> Vec<RunStored> {
        let run = |(handle, parent, depth, prefix): &(u64, u64, usize, Prefix)| RunStored {
            handle: *handle,
            parent: *parent,
            depth: *depth as u32,
            hashes: hashes(prefix)[*depth..].to_vec(),
        };
        // Parents come first: a handle is higher than its parent's.
        self.runs.iter().map(run).collect()
    }

    fn leading_blocks(&self, prefix: &[u8]) -> usize {
        (1..=prefix.len()).take_while(|&end| self.held.contains(&prefix[..end])).count()
    }
}

fn prefix(rng: &mut StdRng) -> Prefix {
    (0..rng.random_range(1..12)).map(|_| rng.random_range(0..3)).collect()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_start(Duration::from_secs(seconds))
}

#[test]
fn it_knows_exactly_what_each_worker_holds() {
    for seed in 0..seeds() {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut index = PrefixIndex::new(DEFAULT_MAX_BYTES);
        let mut caches: Vec<Cache> = (0..3).map(|_| Cache::default()).collect();
        for _ in 0..200 {
            let which = rng.random_range(0..caches.len());
            let (worker, cache) = (WorkerId(which as u32), &mut caches[which]);
            let mut change = CacheChange::default();
            match rng.random_range(0..20) {
                0 => {
                    index.remove(worker);
                    *cache = Cache::default();
                }
                1 => index.replace(worker, &cache.snapshot(), &Gaps::default()).expect("a snapshot fits"),
                2..8 => change.truncated.extend(cache.evict(&mut rng)),
                _ => change.stored.extend(cache.store(&prefix(&mut rng))),
            }
            index.apply(worker, &change).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let asked = prefix(&mut rng);
            for (which, cache) in caches.iter().enumerate() {
                let worker = WorkerId(which as u32);
                let got = leading_blocks(&mut index, worker, &hashes(&asked));
                assert_eq!(got, cache.leading_blocks(&asked), "seed {seed}, worker {which}, {asked:?}");
                assert_eq!(index.blocks(worker), cache.held.len(), "seed {seed}");
            }
            index.tree.audit();
        }
        (0..3).for_each(|which| index.remove(WorkerId(which)));
        index.clean(usize::MAX);
        assert!(index.tree.is_empty() && index.expected.is_empty(), "seed {seed}: nothing is left behind");
    }
}

#[test]
fn at_its_limit_it_drops_the_oldest_runs_and_never_claims_what_is_not_cached() {
    let cap = 1500;
    for seed in 0..seeds() {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut index = PrefixIndex::new(cap);
        let mut cache = Cache::default();
        let worker = WorkerId(0);
        for _ in 0..200 {
            let mut change = CacheChange::default();
            let mut newest = None;
            if rng.random_range(0..4) == 0 {
                change.truncated.extend(cache.evict(&mut rng));
            } else {
                newest = Some(prefix(&mut rng));
                change.stored.extend(newest.as_ref().and_then(|prefix| cache.store(prefix)));
            }
            index.apply(worker, &change).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(index.bytes() <= cap, "seed {seed}");
            index.tree.audit();
            for asked in newest.into_iter().chain([prefix(&mut rng)]) {
                let got = leading_blocks(&mut index, worker, &hashes(&asked));
                assert!(got <= cache.leading_blocks(&asked), "seed {seed}: {asked:?}");
            }
        }
    }
}

#[test]
fn an_event_that_does_not_fit_requests_a_snapshot_and_harms_nothing() {
    let run = |handle, parent, depth, prefix: &[u8]| RunStored {
        handle,
        parent,
        depth,
        hashes: hashes(prefix)[depth as usize..].to_vec(),
    };
    let stored = |run| CacheChange { stored: vec![run], ..CacheChange::default() };
    let worker = WorkerId(1);
    let mut index = PrefixIndex::new(DEFAULT_MAX_BYTES);
    index.apply(worker, &stored(run(1, 0, 0, &[1, 2]))).expect("a first run fits");
    let unknown_parent = stored(run(2, 9, 2, &[1, 2, 3]));
    let behind_the_parent = stored(run(2, 1, 3, &[1, 2, 3, 4]));
    let grown_with_a_gap = stored(run(1, 0, 3, &[1, 2, 3, 4]));
    let truncated =
        CacheChange { truncated: vec![RunTruncated { handle: 9, new_end: 0 }], ..CacheChange::default() };
    for lost in [unknown_parent, behind_the_parent, grown_with_a_gap, truncated] {
        assert!(index.apply(worker, &lost).is_err(), "{lost:?}");
        assert_eq!(leading_blocks(&mut index, worker, &hashes(&[1, 2, 3, 4])), 2);
    }
}

#[test]
fn a_prefix_is_expected_until_it_is_cached_withdrawn_or_too_old() {
    let (worker, asked) = (WorkerId(1), hashes(&[1, 2, 3]));
    let check = |index: &mut PrefixIndex, expected: usize| {
        assert_eq!(leading_blocks(index, worker, &asked), expected);
        assert_eq!(leading_blocks(index, WorkerId(2), &asked), 0);
    };
    let mut index = PrefixIndex::new(DEFAULT_MAX_BYTES);
    index.expect(worker, Expectation::Placed(1), &asked, at(0));
    index.expect(worker, Expectation::Placed(2), &asked[..1], at(0));
    check(&mut index, 3);
    index.withdraw(worker, 1);
    check(&mut index, 1);
    index.withdraw(worker, 2);
    check(&mut index, 0);
    index.expect(worker, Expectation::Admitted, &asked, at(0));
    check(&mut index, 3);
    let run = RunStored { handle: 1, parent: 0, depth: 0, hashes: asked.clone() };
    index.apply(worker, &CacheChange { stored: vec![run], ..CacheChange::default() }).expect("it fits");
    let truncated = vec![RunTruncated { handle: 1, new_end: 0 }];
    index.apply(worker, &CacheChange { truncated, ..CacheChange::default() }).expect("it fits");
    check(&mut index, 0);
    index.expect(worker, Expectation::Admitted, &asked, at(0));
    index.expect(worker, Expectation::Admitted, &hashes(&[9]), at(61));
    check(&mut index, 0);
    // Their number is bounded in any case.
    for round in 0..3 * MAX_BLOCKS_EACH as u64 / 1000 {
        let many: Vec<u64> = (0..1000).map(|hash| round * 1000 + hash).collect();
        index.expect(worker, Expectation::Admitted, &many, at(61));
    }
    let column = index.column(worker);
    assert!(index.expected.blocks_of(column) <= MAX_BLOCKS_EACH);
}

/// Operations in an order that no worker sends: parents evicted before children, reused handles, gaps.
#[test]
fn nonsense_from_a_worker_leaves_the_index_consistent_and_empty_in_the_end() {
    for seed in 0..seeds() {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut index = PrefixIndex::new(if seed % 2 == 0 { DEFAULT_MAX_BYTES } else { 2000 });
        for _ in 0..200 {
            let worker = WorkerId(rng.random_range(0..3));
            let (handle, parent) = (rng.random_range(0..6), rng.random_range(0..6));
            let depth = rng.random_range(0..6);
            let hashes = hashes(&prefix(&mut rng));
            match rng.random_range(0..12) {
                0 => index.remove(worker),
                1 => assert_eq!(index.replace(worker, &[], &Gaps::default()), Ok(())),
                2 => index.clean(3),
                3 => index.expect(worker, Expectation::Placed(handle), &hashes, at(0)),
                4 => index.withdraw(worker, handle),
                5..8 => {
                    let truncated = vec![RunTruncated { handle, new_end: depth }];
                    let _ = index.apply(worker, &CacheChange { truncated, ..CacheChange::default() });
                }
                _ => {
                    let depth = if rng.random() { 0 } else { depth };
                    let parent = if depth == 0 { 0 } else { parent };
                    let hashes = hashes.into_iter().skip(depth as usize).collect();
                    let _ = index.store(worker, &[RunStored { handle, parent, depth, hashes }]);
                }
            }
            index.tree.audit();
        }
        (0..3).for_each(|which| index.remove(WorkerId(which)));
        index.clean(usize::MAX);
        assert!(index.tree.is_empty() && index.expected.is_empty(), "seed {seed}");
    }
}

#[test]
fn workers_that_hold_the_same_blocks_share_their_memory() {
    let chain: Vec<BlockHash> = (1..=10_000).collect();
    let mut index = PrefixIndex::new(usize::MAX);
    let runs: Vec<RunStored> = (0..100)
        .map(|run| RunStored {
            handle: run + 1,
            parent: run,
            depth: run as u32 * 100,
            hashes: chain[run as usize * 100..][..100].to_vec(),
        })
        .collect();
    for worker in 0..64 {
        index.replace(WorkerId(worker), &runs, &Gaps::default()).expect("a snapshot fits");
    }
    let mut hits = Hits::default();
    index.search(&chain, &mut hits);
    assert!((0..64).all(|worker| hits.blocks(index.members[&WorkerId(worker)].column) == 10_000));
    let held = 64 * 10_000;
    assert!(index.bytes() < held, "less than a byte for each block that a worker holds: {}", index.bytes());
    (0..64).for_each(|worker| index.remove(WorkerId(worker)));
    index.clean(usize::MAX);
    assert_eq!(index.bytes(), 0);
}
