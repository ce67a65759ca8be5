//! Cached blocks without something that the next token needs. Of workers with windows: the keys of layers
//! that attend to one, so a prefix that ends soon after such a block cannot be shared. Workers with states
//! report the blocks that have one instead; see [`ends`](super::ends). Pure.

use std::collections::{BTreeMap, HashSet};

use skein_proto::block_hash::BlockHash;
use skein_proto::runs::{Gap, Gaps};

use super::columns::Column;
use super::ends::EndsByColumn;
use super::hash_map::Mixed;

/// Most gaps of a worker. Beyond, further ones are dropped, and hits may be predicted too long.
const MAX_GAPS_EACH: usize = 1 << 20;

/// Gaps of the workers that have windows or states.
#[derive(Debug, Default)]
pub(super) struct GapsByColumn {
    windows: BTreeMap<Column, OfWindows>,
    ends: EndsByColumn,
}

/// Gaps of a worker with windows.
#[derive(Debug)]
struct OfWindows {
    /// Number of blocks before the end of a prefix that must not be gaps.
    window_blocks: usize,
    open: HashSet<BlockHash, Mixed>,
}

impl GapsByColumn {
    /// Replaces all gaps of a worker.
    pub fn replace(&mut self, column: Column, gaps: &Gaps) {
        let &Gaps { window_blocks, ref hashes, are_ends } = gaps;
        self.windows.remove(&column);
        self.ends.remove(column);
        if are_ends {
            self.ends.open(column, hashes);
        } else if window_blocks > 0 {
            let open = hashes.iter().copied().take(MAX_GAPS_EACH).collect();
            self.windows.insert(column, OfWindows { window_blocks: window_blocks as usize, open });
        }
    }

    /// Whether the worker reports blocks with a state.
    pub fn are_ends(&self, column: Column) -> bool {
        self.ends.contains(column)
    }

    /// Applies changes of a worker's gaps, in order.
    pub fn apply(&mut self, column: Column, changes: &[Gap]) {
        changes.iter().for_each(|&Gap { hash, is_open }| self.ends.set(column, hash, !is_open));
        let Some(of_windows) = self.windows.get_mut(&column) else { return };
        for &Gap { hash, is_open } in changes {
            if !is_open {
                of_windows.open.remove(&hash);
            } else if of_windows.open.len() < MAX_GAPS_EACH {
                of_windows.open.insert(hash);
            }
        }
    }

    /// Shortens each worker's hit to what it can share of `chain`. `resumable` has the number of blocks of it
    /// after which each worker is expected to have a state, 0 if none is expected; it is overwritten.
    pub fn shorten(&self, chain: &[BlockHash], hits: &mut [u32], resumable: &mut [u32]) {
        for (column, of_windows) in self.windows.iter().filter(|(_, of_windows)| !of_windows.open.is_empty())
        {
            let hit = &mut hits[*column as usize];
            *hit = of_windows.usable(&chain[..(*hit as usize).min(chain.len())]) as u32;
        }
        self.ends.shorten(chain, hits, resumable);
    }

    /// Whether nothing is known of any worker.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.ends.is_empty()
    }
}

impl OfWindows {
    /// Number of leading blocks of `held` that can be shared: the most whose last blocks are no gaps.
    fn usable(&self, held: &[BlockHash]) -> usize {
        let (mut end, mut at) = (held.len(), held.len());
        while at > 0 && end - at < self.window_blocks {
            at -= 1;
            if self.open.contains(&held[at]) {
                end = at;
            }
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(window_blocks: u32, open: &[BlockHash], held: &[BlockHash], expected: u32) {
        let mut gaps = GapsByColumn::default();
        gaps.replace(1, &Gaps { window_blocks, hashes: open.to_vec(), are_ends: false });
        let mut hits = [0, held.len() as u32, held.len() as u32];
        gaps.shorten(held, &mut hits, &mut [0; 3]);
        assert_eq!(hits, [0, expected, held.len() as u32], "{window_blocks} of {open:?} in {held:?}");
    }

    #[test]
    fn a_hit_ends_where_its_last_blocks_are_no_gaps() {
        check(2, &[], &[1, 2, 3, 4], 4);
        check(2, &[1, 2], &[1, 2, 3, 4], 4);
        check(2, &[4], &[1, 2, 3, 4], 3);
        check(2, &[3], &[1, 2, 3, 4], 2);
        check(2, &[2, 4], &[1, 2, 3, 4], 1);
        check(2, &[1, 3], &[1, 2, 3, 4], 0);
        check(9, &[1], &[1, 2, 3, 4], 0);
        check(9, &[7], &[], 0);
    }

    #[test]
    fn gaps_open_close_and_go_with_their_worker() {
        let mut gaps = GapsByColumn::default();
        let hit = |gaps: &GapsByColumn| {
            let mut hits = [3];
            gaps.shorten(&[1, 2, 3], &mut hits, &mut [0]);
            hits[0]
        };
        gaps.apply(0, &[Gap { hash: 3, is_open: true }]);
        assert_eq!(hit(&gaps), 3, "a worker without windows has no gaps");
        gaps.replace(0, &Gaps { window_blocks: 1, hashes: vec![3], are_ends: false });
        assert_eq!(hit(&gaps), 2);
        gaps.apply(0, &[Gap { hash: 3, is_open: false }, Gap { hash: 2, is_open: true }]);
        assert_eq!(hit(&gaps), 3);
        gaps.replace(0, &Gaps { window_blocks: 1, hashes: vec![2], are_ends: true });
        assert_eq!(hit(&gaps), 2, "states count, not windows");
        gaps.replace(0, &Gaps::default());
        assert!(gaps.is_empty());
    }
}
