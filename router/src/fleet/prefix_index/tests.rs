//! The index compared with a naive model: for each worker, the set of token prefixes in its cache.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_proto::block_hash;
use skein_proto::runs::{CacheChange, RunStored, RunTruncated};

use super::*;

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
        let told = RunTruncated { handle: *handle, new_end: end as u32 };
        if end == *depth {
            self.runs.remove(index);
        }
        Some(told)
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
    for seed in 0..200 {
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
                1 => index.replace(worker, &cache.snapshot()).expect("a snapshot fits"),
                2..8 => change.truncated.extend(cache.evict(&mut rng)),
                _ => change.stored.extend(cache.store(&prefix(&mut rng))),
            }
            index.apply(worker, &change).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let asked = prefix(&mut rng);
            for (which, cache) in caches.iter().enumerate() {
                let worker = WorkerId(which as u32);
                let got = index.leading_blocks(worker, &hashes(&asked));
                assert_eq!(got, cache.leading_blocks(&asked), "seed {seed}, worker {which}, {asked:?}");
                assert_eq!(index.blocks(worker), cache.held.len(), "seed {seed}");
            }
        }
        (0..3).for_each(|which| index.remove(WorkerId(which)));
        assert_eq!((index.bytes(), index.by_age.len()), (0, 0), "seed {seed}: nothing is left behind");
    }
}

#[test]
fn at_its_limit_it_drops_the_oldest_runs_and_never_claims_what_is_not_cached() {
    let cap = 4 * BYTES_PER_RUN + 20 * BYTES_PER_BLOCK;
    for seed in 0..200 {
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
            for asked in newest.into_iter().chain([prefix(&mut rng)]) {
                let got = index.leading_blocks(worker, &hashes(&asked));
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
        assert_eq!(index.leading_blocks(worker, &hashes(&[1, 2, 3, 4])), 2);
    }
}

#[test]
fn a_prefix_is_expected_until_it_is_cached_withdrawn_or_too_old() {
    let (worker, asked) = (WorkerId(1), hashes(&[1, 2, 3]));
    let check = |index: &PrefixIndex, expected: usize| {
        assert_eq!(index.leading_blocks(worker, &asked), expected);
        assert_eq!(index.leading_blocks(WorkerId(2), &asked), 0);
    };
    let mut index = PrefixIndex::new(DEFAULT_MAX_BYTES);
    index.expect(worker, Expectation::Placed(1), &asked, at(0));
    index.expect(worker, Expectation::Placed(2), &asked[..1], at(0));
    check(&index, 3);
    index.withdraw(worker, 1);
    check(&index, 1);
    index.withdraw(worker, 2);
    check(&index, 0);
    index.expect(worker, Expectation::Admitted, &asked, at(0));
    check(&index, 3);
    let run = RunStored { handle: 1, parent: 0, depth: 0, hashes: asked.clone() };
    index.apply(worker, &CacheChange { stored: vec![run], ..CacheChange::default() }).expect("it fits");
    let truncated = vec![RunTruncated { handle: 1, new_end: 0 }];
    index.apply(worker, &CacheChange { truncated, ..CacheChange::default() }).expect("it fits");
    check(&index, 0);
    index.expect(worker, Expectation::Admitted, &asked, at(0));
    index.expect(worker, Expectation::Admitted, &hashes(&[9]), at(61));
    check(&index, 0);
    // Their number is bounded in any case.
    for round in 0..3 * MAX_EXPECTED_BLOCKS as u64 / 1000 {
        let many: Vec<u64> = (0..1000).map(|hash| round * 1000 + hash).collect();
        index.expect(worker, Expectation::Admitted, &many, at(61));
    }
    assert!(index.workers[&worker].expected_blocks.len() <= MAX_EXPECTED_BLOCKS);
}
