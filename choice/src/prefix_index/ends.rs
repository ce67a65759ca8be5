//! Ends: cached blocks with a state of recurrent layers, at workers whose model has such layers. A prompt can
//! resume only after an end. Pure.

use std::collections::{BTreeMap, HashSet};

use skein_proto::block_hash::BlockHash;

use super::columns::Column;
use super::hash_map::{ByHash, Mixed, shrink};

/// Most ends of a worker; a state has megabytes, so none has as many. Beyond, further ones are dropped, and
/// hits may be predicted too short.
const MAX_ENDS_EACH: usize = 1 << 16;

/// Ends of the workers that have states.
#[derive(Debug, Default)]
pub(super) struct EndsByColumn {
    by_column: BTreeMap<Column, HashSet<BlockHash, Mixed>>,
    /// The same by block, so that one walk over a chain finds the ends of all workers.
    by_block: ByHash<Vec<Column>>,
}

impl EndsByColumn {
    /// Lets a worker, which must not be here, have `ends`.
    pub fn open(&mut self, column: Column, ends: &[BlockHash]) {
        self.by_column.insert(column, HashSet::default());
        ends.iter().for_each(|&hash| self.set(column, hash, true));
    }

    /// Forgets a worker.
    pub fn remove(&mut self, column: Column) {
        let Some(ends) = self.by_column.remove(&column) else { return };
        ends.into_iter().for_each(|hash| self.withdraw(column, hash));
    }

    /// Whether a worker has states.
    pub fn contains(&self, column: Column) -> bool {
        self.by_column.contains_key(&column)
    }

    /// Sets whether a block is an end of a worker. Of no effect if that has no states.
    pub fn set(&mut self, column: Column, hash: BlockHash, is_end: bool) {
        let Some(ends) = self.by_column.get_mut(&column) else { return };
        if !is_end {
            if ends.remove(&hash) {
                self.withdraw(column, hash);
            }
        } else if ends.len() < MAX_ENDS_EACH && ends.insert(hash) {
            self.by_block.entry(hash).or_default().push(column);
        }
    }

    fn withdraw(&mut self, column: Column, hash: BlockHash) {
        let std::collections::hash_map::Entry::Occupied(mut entry) = self.by_block.entry(hash) else {
            return;
        };
        entry.get_mut().retain(|&other| other != column);
        if entry.get().is_empty() {
            entry.remove();
            shrink(&mut self.by_block);
        }
    }

    /// Shortens the hit of each worker with states to the longest part whose last block is an end, but to no
    /// fewer than `resumable` blocks. Overwrites `resumable`.
    ///
    /// Looks up each block once for all workers, back from the end of the longest hit until all have an end.
    pub fn shorten(&self, chain: &[BlockHash], hits: &mut [u32], resumable: &mut [u32]) {
        let (mut searching, mut longest) = (0, 0);
        for (&column, _) in self.by_column.iter().filter(|(_, ends)| !ends.is_empty()) {
            let column = column as usize;
            if resumable[column] < hits[column] {
                searching += 1;
                longest = longest.max(hits[column]);
            }
        }
        for (at, hash) in (0..longest).zip(chain).rev() {
            if searching == 0 {
                break;
            }
            for column in self.by_block.get(hash).into_iter().flatten().map(|&column| column as usize) {
                if resumable[column] <= at && at < hits[column] {
                    resumable[column] = at + 1;
                    searching -= 1;
                }
            }
        }
        for column in self.by_column.keys().map(|&column| column as usize) {
            hits[column] = resumable[column];
        }
    }

    /// Whether no worker has states.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_column.is_empty() && self.by_block.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers 1 and 2 have states, worker 0 has none.
    fn check(ends: [&[BlockHash]; 2], hits: [u32; 3], expected: [u32; 3], shortened: [u32; 3]) {
        let mut index = EndsByColumn::default();
        (1..).zip(ends).for_each(|(column, ends)| index.open(column, ends));
        let (mut now, mut resumable) = (hits, expected);
        index.shorten(&[1, 2, 3, 4, 5], &mut now, &mut resumable);
        assert_eq!(now, shortened, "{ends:?}, {hits:?}, {expected:?}");
        (1..3).for_each(|column| index.remove(column));
        assert!(index.is_empty());
    }

    #[test]
    fn a_hit_ends_with_the_last_block_that_is_an_end() {
        check([&[], &[]], [5, 5, 0], [0; 3], [5, 0, 0]);
        check([&[2, 4], &[1, 2, 9]], [5, 5, 5], [0; 3], [5, 4, 2]);
        check([&[2, 4], &[2, 4]], [0, 4, 3], [0; 3], [0, 4, 2]);
        check([&[2, 4], &[1, 4]], [5, 1, 3], [0; 3], [5, 0, 1]);
        check([&[5], &[5, 5]], [5, 5, 4], [0; 3], [5, 5, 0]);
    }

    #[test]
    fn a_hit_ends_with_an_expected_end_if_that_is_later() {
        check([&[2, 4], &[2, 4]], [5, 5, 5], [5, 5, 1], [5, 5, 4]);
        check([&[], &[2, 4]], [5, 3, 5], [3, 3, 3], [5, 3, 4]);
        check([&[4], &[2]], [5, 3, 5], [0, 2, 3], [5, 2, 3]);
    }

    #[test]
    fn ends_come_and_go_one_by_one_and_their_number_is_bounded() {
        let mut index = EndsByColumn::default();
        let hit = |index: &EndsByColumn| {
            let mut hits = [3];
            index.shorten(&[1, 2, 3], &mut hits, &mut [0]);
            hits[0]
        };
        index.set(0, 3, true);
        assert_eq!(hit(&index), 3, "a worker without states can resume anywhere");
        index.open(0, &[3]);
        assert_eq!(hit(&index), 3);
        index.set(0, 1, true);
        index.set(0, 3, false);
        index.set(0, 3, false);
        assert_eq!(hit(&index), 1);
        index.set(0, 1, false);
        assert_eq!(hit(&index), 0);
        (0..2 * MAX_ENDS_EACH as u64).for_each(|hash| index.set(0, hash, true));
        assert_eq!(index.by_block.len(), MAX_ENDS_EACH);
        index.remove(0);
        assert!(index.is_empty());
    }
}
