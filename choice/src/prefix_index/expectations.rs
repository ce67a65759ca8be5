//! Blocks about to be cached, of prompts just placed or admitted. Follow-up requests therefore go to the same
//! worker before its report arrives. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::block_hash::BlockHash;

use super::columns::Column;
use super::compared::Compared;
use super::hash_map::{ByHash, shrink};

/// Why a prefix is expected in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// Placed by this router under this sequence number; not yet confirmed by the worker.
    Placed(u64),
    /// Admitted by the worker.
    Admitted,
}

/// Most expected blocks per worker; the oldest expectations are dropped first.
pub(super) const MAX_BLOCKS_EACH: usize = 1 << 16;
/// Most expected blocks of all workers, about 64 MiB; above this, each worker keeps one expectation.
const MAX_BLOCKS: usize = 1 << 20;
/// Age at which an expectation is dropped, because its request was probably cancelled.
const EXPECTED_FOR: Duration = Duration::from_secs(60);

/// Expectations of all workers.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    by_block: ByHash<Expecters>,
    by_column: Vec<Queue>,
    blocks: usize,
}

/// Number of an expectation of one worker, in the order in which they were added.
type Number = u64;

/// Expectations of one worker. Each is found by its number, placement or last block in logarithmic time: a
/// busy worker has many that wait for a report.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<Compared<Number>, Waiting>,
    placed: BTreeMap<Compared<u64>, Number>,
    by_last: BTreeSet<Compared<(BlockHash, Number)>>,
    next: Number,
    blocks: usize,
}

#[derive(Debug)]
struct Waiting {
    who: Expectation,
    since: Timestamp,
    hashes: Box<[BlockHash]>,
}

impl Queue {
    fn oldest(&self) -> Option<(Number, &Waiting)> {
        self.waiting.first_key_value().map(|(number, waiting)| (number.0, waiting))
    }

    fn push(&mut self, waiting: Waiting) {
        let number = self.next;
        self.next += 1;
        self.blocks += waiting.hashes.len();
        if let Expectation::Placed(sequence) = waiting.who {
            self.placed.insert(Compared(sequence), number);
        }
        self.by_last.extend(waiting.hashes.last().map(|&last| Compared((last, number))));
        self.waiting.insert(Compared(number), waiting);
    }

    fn take(&mut self, number: Number) -> Option<Waiting> {
        let taken = self.waiting.remove(&Compared(number))?;
        self.blocks -= taken.hashes.len();
        if let Expectation::Placed(sequence) = taken.who {
            self.placed.remove(&Compared(sequence));
        }
        if let Some(&last) = taken.hashes.last() {
            self.by_last.remove(&Compared((last, number)));
        }
        Some(taken)
    }

    /// Numbers of the expectations whose last block is `last`.
    fn ending_with(&self, last: BlockHash) -> impl Iterator<Item = Number> {
        let range = Compared((last, Number::MIN))..=Compared((last, Number::MAX));
        self.by_last.range(range).map(|&Compared((_, number))| number)
    }
}

/// Workers that expect a block. Most blocks have only one.
#[derive(Debug)]
struct Expecters {
    first: Expecter,
    more: Vec<Expecter>,
}

#[derive(Debug, Clone, Copy)]
struct Expecter {
    column: Column,
    /// Number of its expectations that contain the block.
    count: u32,
    /// Number of these whose last block it is.
    ends: u32,
}

impl Expecters {
    fn iter(&self) -> impl Iterator<Item = &Expecter> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn find(&mut self, column: Column) -> Option<&mut Expecter> {
        std::iter::once(&mut self.first).chain(&mut self.more).find(|expecter| expecter.column == column)
    }

    /// Removes one expectation of `column`, of which the block `is_last`; returns whether any is left.
    fn remove_one(&mut self, column: Column, is_last: bool) -> bool {
        let Some(expecter) = self.find(column) else { return true };
        expecter.count -= 1;
        expecter.ends -= u32::from(is_last);
        self.more.retain(|expecter| expecter.count > 0);
        if self.first.count == 0 {
            let Some(next) = self.more.pop() else { return false };
            self.first = next;
        }
        true
    }
}

impl Expectations {
    /// Extends each worker's `hits` by the blocks of `chain` that it expects. Sets `resumable` to the number
    /// of leading blocks up to the last one with which an expectation ends: a worker with states keeps one at
    /// a prompt's end, and perhaps others, but where is unknown.
    pub fn search(&self, chain: &[BlockHash], hits: &mut [u32], resumable: &mut [u32]) {
        if self.by_block.is_empty() {
            return;
        }
        for (at, hash) in chain.iter().enumerate() {
            let Some(expecters) = self.by_block.get(hash) else { continue };
            for expecter in expecters.iter() {
                let hit = &mut hits[expecter.column as usize];
                if *hit as usize == at {
                    *hit += 1;
                }
                if expecter.ends > 0 && *hit as usize > at {
                    resumable[expecter.column as usize] = at as u32 + 1;
                }
            }
        }
    }

    /// Records that the worker is about to cache `hashes`. A placement of the same sequence number is
    /// replaced.
    pub fn add(&mut self, column: Column, who: Expectation, hashes: &[BlockHash], now: Timestamp) {
        if hashes.is_empty() {
            return;
        }
        if let Expectation::Placed(sequence) = who {
            self.withdraw(column, sequence);
        }
        for (at, &hash) in hashes.iter().enumerate() {
            let new = Expecter { column, count: 1, ends: u32::from(at + 1 == hashes.len()) };
            match self.by_block.entry(hash) {
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(Expecters { first: new, more: Vec::new() });
                }
                std::collections::hash_map::Entry::Occupied(mut entry) => {
                    match entry.get_mut().find(column) {
                        Some(known) => (known.count, known.ends) = (known.count + 1, known.ends + new.ends),
                        None => entry.get_mut().more.push(new),
                    }
                }
            }
        }
        if self.by_column.len() <= column as usize {
            self.by_column.resize_with(column as usize + 1, Queue::default);
        }
        let queue = &mut self.by_column[column as usize];
        queue.push(Waiting { who, since: now, hashes: hashes.into() });
        self.blocks += hashes.len();
        while self.is_too_much(column, now) {
            self.drop_oldest(column);
        }
    }

    fn is_too_much(&self, column: Column, now: Timestamp) -> bool {
        let queue = &self.by_column[column as usize];
        let is_old = queue.oldest().is_some_and(|(_, waiting)| now.since(waiting.since) > EXPECTED_FOR);
        is_old || queue.blocks > MAX_BLOCKS_EACH || (self.blocks > MAX_BLOCKS && queue.waiting.len() > 1)
    }

    /// Removes the expectation of placement `sequence`.
    pub fn withdraw(&mut self, column: Column, sequence: u64) {
        let Some(queue) = self.by_column.get(column as usize) else { return };
        if let Some(&number) = queue.placed.get(&Compared(sequence)) {
            self.drop(column, number);
        }
    }

    /// Removes the worker's expectations whose last block is one of `cached`.
    pub fn settle(&mut self, column: Column, cached: impl Iterator<Item = BlockHash>) {
        for last in cached {
            let Some(queue) = self.by_column.get(column as usize).filter(|queue| queue.blocks > 0) else {
                return;
            };
            if self.by_block.contains_key(&last) {
                let settled: Vec<Number> = queue.ending_with(last).collect();
                settled.into_iter().for_each(|number| self.drop(column, number));
            }
        }
    }

    /// Removes all expectations of a worker.
    pub fn clear(&mut self, column: Column) {
        while self.by_column.get(column as usize).is_some_and(|queue| !queue.waiting.is_empty()) {
            self.drop_oldest(column);
        }
    }

    fn drop_oldest(&mut self, column: Column) {
        if let Some((number, _)) = self.by_column[column as usize].oldest() {
            self.drop(column, number);
        }
    }

    fn drop(&mut self, column: Column, number: Number) {
        let Some(dropped) = self.by_column[column as usize].take(number) else { return };
        self.blocks -= dropped.hashes.len();
        for (at, &hash) in dropped.hashes.iter().enumerate() {
            let is_last = at + 1 == dropped.hashes.len();
            if let std::collections::hash_map::Entry::Occupied(mut entry) = self.by_block.entry(hash)
                && !entry.get_mut().remove_one(column, is_last)
            {
                entry.remove();
            }
        }
        shrink(&mut self.by_block);
    }

    /// Number of blocks expected by a worker.
    #[cfg(test)]
    pub fn blocks_of(&self, column: Column) -> usize {
        self.by_column[column as usize].blocks
    }

    /// Whether there are no expectations.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_block.is_empty() && self.blocks == 0
    }
}
