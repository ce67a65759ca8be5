//! Which worker caches which prefix, from the runs that workers report. Pure.
//!
//! A hash names a block *and everything before it*, and a worker's cache is prefix-closed, so counting the
//! leading blocks of a prompt that it holds is a binary search over set membership. The index also tracks
//! blocks *about to be cached*, of prompts just placed or admitted, so that follow-up requests go to the same
//! worker.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::BlockHash;
use skein_proto::runs::{CacheChange, RunStored, RunTruncated};

use super::worker_id::WorkerId;

/// The index no longer matches the worker's cache; only a snapshot helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("run {handle} does not fit what is known of this worker's cache")]
pub struct Desync {
    /// The run that did not fit.
    pub handle: u64,
}

/// Why a prefix is expected in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// This router placed it under this sequence number, and the worker has not confirmed it yet.
    Placed(u64),
    /// The worker admitted it.
    Admitted,
}

/// Default memory limit of the index.
pub const DEFAULT_MAX_BYTES: usize = 256 * 1024 * 1024;
/// Memory of a cached block: its hash in the run and its item in the set, both with slack.
const BYTES_PER_BLOCK: usize = 48;
/// Memory of a run: its items in two maps.
const BYTES_PER_RUN: usize = 160;
/// Most expected blocks per worker; the oldest expectations go first.
const MAX_EXPECTED_BLOCKS: usize = 1 << 16;
/// After this time an expectation is dropped: its request was probably cancelled.
const EXPECTED_FOR: Duration = Duration::from_secs(60);

/// The index over all workers.
#[derive(Debug)]
pub struct PrefixIndex {
    workers: HashMap<WorkerId, Mirror>,
    /// Runs by when they last grew. A parent is always younger than its children, so the oldest run is a
    /// leaf.
    by_age: BTreeMap<u64, (WorkerId, u64)>,
    next_age: u64,
    bytes: usize,
    max_bytes: usize,
}

/// One worker's cache as far as known.
#[derive(Debug, Default)]
struct Mirror {
    runs: HashMap<u64, KnownRun>,
    held: Counts,
    expected: VecDeque<(Expectation, Timestamp, Vec<BlockHash>)>,
    expected_blocks: Counts,
    /// Runs were dropped to stay within the memory limit, so an unknown handle does not mean a lost event.
    dropped_runs: bool,
}

#[derive(Debug)]
struct KnownRun {
    parent: u64,
    depth: u32,
    hashes: Vec<BlockHash>,
    age: u64,
}

impl KnownRun {
    fn end(&self) -> u32 {
        self.depth + self.hashes.len() as u32
    }
}

impl PrefixIndex {
    /// An empty index that uses at most about `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { workers: HashMap::new(), by_age: BTreeMap::new(), next_age: 0, bytes: 0, max_bytes }
    }

    /// Number of leading blocks of a prompt that `worker` caches or is about to cache. Does not allocate.
    pub fn leading_blocks(&self, worker: WorkerId, hashes: &[BlockHash]) -> usize {
        self.workers.get(&worker).map_or(0, |mirror| {
            hashes.partition_point(|hash| {
                mirror.held.contains_key(hash) || mirror.expected_blocks.contains_key(hash)
            })
        })
    }

    /// Replaces everything known of `worker`'s cache. Expectations stay.
    pub fn replace(&mut self, worker: WorkerId, runs: &[RunStored]) -> Result<(), Desync> {
        self.forget_cached(worker);
        runs.iter().try_for_each(|run| self.store(worker, run))?;
        self.settle(worker);
        Ok(())
    }

    /// Applies a change of `worker`'s cache. On an error the caller must request a snapshot.
    pub fn apply(&mut self, worker: WorkerId, change: &CacheChange) -> Result<(), Desync> {
        for &RunTruncated { handle, new_end } in &change.truncated {
            self.truncate(worker, handle, new_end)?;
        }
        change.stored.iter().try_for_each(|run| self.store(worker, run))?;
        self.settle(worker);
        Ok(())
    }

    /// Records that `worker` is about to cache `hashes`, which continue what it holds.
    pub fn expect(&mut self, worker: WorkerId, who: Expectation, hashes: &[BlockHash], now: Timestamp) {
        let mirror = self.workers.entry(worker).or_default();
        if hashes.is_empty() {
            return;
        }
        hashes.iter().for_each(|hash| mirror.expected_blocks.add(*hash));
        mirror.expected.push_back((who, now, hashes.to_vec()));
        while mirror.expected_blocks.len() > MAX_EXPECTED_BLOCKS
            || mirror.expected.front().is_some_and(|(_, at, _)| now.since(*at) > EXPECTED_FOR)
        {
            mirror.drop_expected(0);
        }
    }

    /// Drops the expectation of this router's placement `sequence`: the worker has admitted it, or it failed.
    pub fn withdraw(&mut self, worker: WorkerId, sequence: u64) {
        let Some(mirror) = self.workers.get_mut(&worker) else { return };
        let placed = Expectation::Placed(sequence);
        if let Some(index) = mirror.expected.iter().position(|(who, _, _)| *who == placed) {
            mirror.drop_expected(index);
        }
    }

    /// Forgets everything about `worker`, which left or restarted.
    pub fn remove(&mut self, worker: WorkerId) {
        self.forget_cached(worker);
        self.workers.remove(&worker);
    }

    /// Approximate memory of the cached runs.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of blocks known to be cached at `worker`.
    pub fn blocks(&self, worker: WorkerId) -> usize {
        self.workers.get(&worker).map_or(0, |mirror| mirror.held.len())
    }

    fn store(&mut self, worker: WorkerId, run: &RunStored) -> Result<(), Desync> {
        let mirror = self.workers.entry(worker).or_default();
        let fits = match mirror.runs.get(&run.handle) {
            Some(known) => known.end() == run.depth,
            None if run.depth == 0 => run.parent == 0,
            None => mirror
                .runs
                .get(&run.parent)
                .is_some_and(|parent| parent.depth < run.depth && run.depth <= parent.end()),
        };
        if !fits {
            // A run that we dropped cannot be continued, and a snapshot would only refill the index.
            return if mirror.dropped_runs { Ok(()) } else { Err(Desync { handle: run.handle }) };
        }
        run.hashes.iter().for_each(|hash| mirror.held.add(*hash));
        let known = mirror.runs.entry(run.handle).or_insert_with(|| {
            self.bytes += BYTES_PER_RUN;
            KnownRun { parent: run.parent, depth: run.depth, hashes: Vec::new(), age: 0 }
        });
        known.hashes.extend_from_slice(&run.hashes);
        self.bytes += run.hashes.len() * BYTES_PER_BLOCK;
        self.touch(worker, run.handle);
        self.enforce_limit();
        Ok(())
    }

    fn truncate(&mut self, worker: WorkerId, handle: u64, new_end: u32) -> Result<(), Desync> {
        let mirror = self.workers.entry(worker).or_default();
        let Some(run) = mirror.runs.get_mut(&handle) else {
            return if mirror.dropped_runs { Ok(()) } else { Err(Desync { handle }) };
        };
        let keep = (new_end.saturating_sub(run.depth) as usize).min(run.hashes.len());
        for hash in run.hashes.drain(keep..) {
            mirror.held.remove_one(hash);
            self.bytes -= BYTES_PER_BLOCK;
        }
        if run.hashes.is_empty() {
            self.by_age.remove(&run.age);
            mirror.runs.remove(&handle);
            self.bytes -= BYTES_PER_RUN;
        }
        Ok(())
    }

    /// Makes a run the youngest and then its ancestors, so that leaves are always older than their parents.
    fn touch(&mut self, worker: WorkerId, handle: u64) {
        let Some(mirror) = self.workers.get_mut(&worker) else { return };
        let mut next = handle;
        // A parent starts before its child, so there are no cycles and this loop ends.
        while let Some(run) = mirror.runs.get_mut(&next) {
            self.by_age.remove(&run.age);
            self.next_age += 1;
            run.age = self.next_age;
            self.by_age.insert(run.age, (worker, next));
            next = run.parent;
        }
    }

    fn enforce_limit(&mut self) {
        while self.bytes > self.max_bytes {
            let Some((_, &(worker, handle))) = self.by_age.first_key_value() else { return };
            if let Some(mirror) = self.workers.get_mut(&worker) {
                mirror.dropped_runs = true;
            }
            let forgotten = self.truncate(worker, handle, 0);
            debug_assert!(forgotten.is_ok(), "a run in by_age is known");
        }
    }

    fn forget_cached(&mut self, worker: WorkerId) {
        if let Some(mirror) = self.workers.get_mut(&worker) {
            for run in std::mem::take(&mut mirror.runs).into_values() {
                self.by_age.remove(&run.age);
                self.bytes -= BYTES_PER_RUN + run.hashes.len() * BYTES_PER_BLOCK;
            }
            mirror.held = Counts::default();
            mirror.dropped_runs = false;
        }
    }

    /// Drops expectations whose last block is cached by now.
    fn settle(&mut self, worker: WorkerId) {
        let Some(mirror) = self.workers.get_mut(&worker) else { return };
        let mut index = 0;
        while let Some((_, _, hashes)) = mirror.expected.get(index) {
            if hashes.last().is_some_and(|hash| mirror.held.contains_key(hash)) {
                mirror.drop_expected(index);
            } else {
                index += 1;
            }
        }
    }
}

impl Mirror {
    fn drop_expected(&mut self, index: usize) {
        let Some((_, _, hashes)) = self.expected.remove(index) else { return };
        hashes.into_iter().for_each(|hash| self.expected_blocks.remove_one(hash));
    }
}

/// How many times each hash is present.
type Counts = HashMap<BlockHash, u32, Mixed>;

trait Count {
    fn add(&mut self, hash: BlockHash);
    fn remove_one(&mut self, hash: BlockHash);
}

impl Count for Counts {
    fn add(&mut self, hash: BlockHash) {
        *self.entry(hash).or_insert(0) += 1;
    }

    fn remove_one(&mut self, hash: BlockHash) {
        if let std::collections::hash_map::Entry::Occupied(mut count) = self.entry(hash) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Block hashes are uniform, but clients choose prompts and thereby hashes. Multiplying by a random number
/// prevents them from provoking collisions in the table.
#[derive(Debug, Clone)]
struct Mixed(u64);

impl Default for Mixed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0u8) | 1)
    }
}

impl BuildHasher for Mixed {
    type Hasher = Mixer;
    fn build_hasher(&self) -> Mixer {
        Mixer { key: self.0, hash: 0 }
    }
}

struct Mixer {
    key: u64,
    hash: u64,
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let wide = u128::from(self.hash ^ self.key) * u128::from(self.key);
        (wide as u64) ^ (wide >> 64) as u64
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.hash = self.hash.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, hash: u64) {
        self.hash = hash;
    }
}

#[cfg(test)]
mod tests;
