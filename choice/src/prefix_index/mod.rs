//! Index of the prefixes cached by each worker, built from the runs that workers report. Pure.
//!
//! A single search covers all workers: it descends the [`tree`] of cached blocks and collects the holders of
//! each run. It also counts blocks expected soon, of prompts just placed or admitted, so that follow-up
//! requests go to the same worker.

mod columns;
mod compared;
mod desync;
mod ends;
mod expectations;
mod gaps;
mod hash_map;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::HashMap;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::BlockHash;
use skein_proto::runs::{CacheChange, Gaps, RunStored, RunTruncated};

use crate::worker_id::WorkerId;
use columns::{Column, NO_COLUMN, Slot};
pub use desync::Desync;
pub use expectations::Expectation;
use expectations::Expectations;
use gaps::GapsByColumn;
use tree::Tree;

/// Default memory limit of the index.
pub const DEFAULT_MAX_BYTES: usize = 256 * 1024 * 1024;
/// Handles of removed caches freed per change, so that a large cache delays no request.
const CLEANED_AT_ONCE: usize = 64;

/// The index over all workers.
#[derive(Debug)]
pub struct PrefixIndex {
    tree: Tree,
    expected: Expectations,
    gaps: GapsByColumn,
    members: HashMap<WorkerId, Place>,
    free_columns: Vec<Column>,
    /// Columns ever assigned, including [`NO_COLUMN`].
    columns: Column,
    max_bytes: usize,
}

/// A worker's position in results and in the tree.
#[derive(Debug, Clone, Copy)]
struct Place {
    column: Column,
    slot: Slot,
}

/// For each worker, the number of leading blocks of a prompt that it caches or is about to cache.
#[derive(Debug, Default)]
pub struct Hits {
    by_column: Vec<u32>,
    /// Scratch of a search: leading blocks up to the last one after which each worker has or expects a state.
    resumable: Vec<u32>,
}

impl Hits {
    /// Number of blocks at the worker with this column.
    #[inline]
    pub fn blocks(&self, column: u32) -> u32 {
        self.by_column.get(column as usize).copied().unwrap_or(0)
    }
}

impl PrefixIndex {
    /// An empty index that uses at most about `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            tree: Tree::default(),
            expected: Expectations::default(),
            gaps: GapsByColumn::default(),
            members: HashMap::new(),
            free_columns: Vec::new(),
            columns: NO_COLUMN + 1,
            max_bytes,
        }
    }

    /// Finds the leading blocks of `chain` at every worker. Does not allocate once `hits` has its size.
    pub fn search(&self, chain: &[BlockHash], hits: &mut Hits) {
        let Hits { by_column, resumable } = hits;
        for each in [&mut *by_column, &mut *resumable] {
            each.clear();
            each.resize(self.columns as usize, 0);
        }
        self.tree.search(chain, by_column);
        self.expected.search(chain, by_column, resumable);
        self.gaps.shorten(chain, by_column, resumable);
    }

    /// Number of `worker` in [`Hits`], valid from its first use until it is removed.
    pub fn column(&mut self, worker: WorkerId) -> u32 {
        self.place(worker).column
    }

    fn place(&mut self, worker: WorkerId) -> Place {
        let Self { tree, members, free_columns, columns, .. } = self;
        *members.entry(worker).or_insert_with(|| {
            let column = free_columns.pop().unwrap_or_else(|| {
                *columns += 1;
                *columns - 1
            });
            Place { column, slot: tree.open(column) }
        })
    }

    /// Replaces everything known of `worker`'s cache. Expectations stay.
    pub fn replace(&mut self, worker: WorkerId, runs: &[RunStored], gaps: &Gaps) -> Result<(), Desync> {
        let Place { column, slot } = self.place(worker);
        self.tree.retire(slot);
        let slot = self.tree.open(column);
        self.members.insert(worker, Place { column, slot });
        self.gaps.replace(column, gaps);
        self.store(worker, runs)
    }

    /// Applies a change of `worker`'s cache. On an error the caller must request a snapshot.
    pub fn apply(&mut self, worker: WorkerId, change: &CacheChange) -> Result<(), Desync> {
        let Place { slot, column } = self.place(worker);
        self.gaps.apply(column, &change.gaps);
        if self.gaps.are_ends(column) {
            // A block that was cached before gets a state without being stored again.
            let closed = change.gaps.iter().filter(|gap| !gap.is_open);
            self.expected.settle(column, closed.map(|gap| gap.hash));
        }
        for &RunTruncated { handle, new_end } in &change.truncated {
            self.tree.truncate(slot, handle, new_end)?;
        }
        self.store(worker, &change.stored)
    }

    /// Adds blocks to the known content of `worker`'s cache.
    pub fn store(&mut self, worker: WorkerId, runs: &[RunStored]) -> Result<(), Desync> {
        let Place { column, slot } = self.place(worker);
        self.tree.clean(CLEANED_AT_ONCE);
        for run in runs {
            self.tree.store(slot, run)?;
            self.enforce_limit();
        }
        self.expected.settle(column, runs.iter().flat_map(|run| &run.hashes).copied());
        Ok(())
    }

    /// Records that `worker` is about to cache `hashes`, which continue what it holds.
    pub fn expect(&mut self, worker: WorkerId, who: Expectation, hashes: &[BlockHash], now: Timestamp) {
        let Place { column, .. } = self.place(worker);
        self.expected.add(column, who, hashes, now);
    }

    /// Drops the expectation of this router's placement `sequence`: the worker has admitted it, or it failed.
    pub fn withdraw(&mut self, worker: WorkerId, sequence: u64) {
        if let Some(place) = self.members.get(&worker) {
            self.expected.withdraw(place.column, sequence);
        }
    }

    /// Removes everything about `worker`, which left or restarted. Its memory is freed as the index changes,
    /// and in [`PrefixIndex::clean`].
    pub fn remove(&mut self, worker: WorkerId) {
        let Some(Place { column, slot }) = self.members.remove(&worker) else { return };
        self.expected.clear(column);
        self.gaps.replace(column, &Gaps::default());
        self.tree.retire(slot);
        self.free_columns.push(column);
    }

    /// Frees up to `handles` runs of removed caches.
    pub fn clean(&mut self, handles: usize) {
        self.tree.clean(handles);
    }

    /// Memory of the cached runs, in bytes.
    pub fn bytes(&self) -> usize {
        self.tree.bytes()
    }

    /// Number of blocks known to be cached at `worker`.
    pub fn blocks(&self, worker: WorkerId) -> usize {
        self.members.get(&worker).map_or(0, |place| self.tree.blocks(place.slot))
    }

    /// Whether no worker is expected to cache anything more.
    #[cfg(test)]
    pub fn expects_nothing(&self) -> bool {
        self.expected.is_empty()
    }

    fn enforce_limit(&mut self) {
        while self.tree.bytes() > self.max_bytes {
            let is_cleaning = self.tree.clean(CLEANED_AT_ONCE);
            if !is_cleaning && self.tree.bytes() > self.max_bytes && !self.tree.forget_oldest() {
                return;
            }
        }
    }
}
