//! Divides the work of one call into pieces. Pure; no result depends on it.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::query::{CHUNK, SequenceRows, seen_from, seen_to};

/// Most queries (rows times query heads of one KV head) per tile, unless a single row has more. They share
/// each read of a chunk, which stays in the second-level cache until then.
const QUERIES_PER_TILE: usize = 64;
/// Pieces to make for each thread, so that all threads finish at about the same time.
const PIECES_PER_THREAD: usize = 4;
/// Most `f32` values of partial results (32 MiB). Tiles beyond that are not split.
const MAX_STATES: usize = 8 << 20;

/// The inputs of a plan besides the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PlanShape {
    pub(super) threads: usize,
    /// Query heads per KV head.
    pub(super) group: usize,
    pub(super) kv_heads: usize,
    /// Most positions that a row sees, including its own.
    pub(super) window: usize,
    /// Whether windows start at their multiples.
    pub(super) is_chunked: bool,
    /// Most positions after its own that a row sees.
    pub(super) ahead: usize,
    /// Number of `f32` in a query's state.
    pub(super) state: usize,
}

/// Rows of a sequence, one KV head, and the chunks of positions to process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) sequence: usize,
    /// Rows relative to the sequence's first row.
    pub(super) rows: Range<usize>,
    pub(super) kv_head: usize,
    /// Chunks to process, at least one.
    pub(super) chunks: Range<usize>,
    /// Set if other pieces process the tile's other chunks.
    pub(super) split: Option<Split>,
}

/// Data shared by all pieces of one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// Index of the tile's first state; states are `[chunks][queries]`.
    pub(super) states: usize,
    /// Index of the tile's counter of finished pieces.
    counter: usize,
    /// Number of pieces of the tile.
    pieces: u32,
    /// First chunk of the tile.
    pub(super) first: usize,
    /// Number of chunks of the tile.
    pub(super) chunks: usize,
}

/// The pieces of one call. Reused, because all layers of a step have the same pieces.
#[derive(Debug, Default)]
pub(super) struct Plan {
    shape: PlanShape,
    /// First row, number of rows, first position and end of each sequence.
    key: Vec<[usize; 4]>,
    pieces: Vec<Piece>,
    states: usize,
    /// Number of finished pieces of each split tile.
    done: Vec<AtomicU32>,
}

impl Plan {
    /// Plans the pieces of all `sequences`, longest first.
    pub(super) fn make(&mut self, shape: PlanShape, sequences: &[SequenceRows<'_>]) {
        let key = sequences.iter().map(|s| [s.rows.start, s.rows.len(), s.position, s.end]);
        if self.shape == shape && key.clone().eq(self.key.iter().copied()) {
            return;
        }
        (self.shape, self.states) = (shape, 0);
        self.key.clear();
        self.key.extend(key);
        self.pieces.clear();
        let tiles = || {
            sequences.iter().enumerate().flat_map(|(index, sequence)| {
                let tile_rows = (QUERIES_PER_TILE / shape.group).max(1);
                let rows = sequence.rows.len();
                (0..rows).step_by(tile_rows).map(move |start| (index, start..rows.min(start + tile_rows)))
            })
        };
        let chunks = |index: usize, rows: &Range<usize>| {
            let SequenceRows { position, end, .. } = sequences[index];
            let seen_from = seen_from(position + rows.start, shape.window, shape.is_chunked);
            seen_from / CHUNK..seen_to(position + rows.end - 1, shape.ahead, end).div_ceil(CHUNK)
        };
        let total: usize = tiles().map(|(index, rows)| rows.len() * chunks(index, &rows).len()).sum();
        // Most rows times chunks of one KV head that a piece should have.
        let most = (total * shape.kv_heads).div_ceil(PIECES_PER_THREAD * shape.threads).max(1);
        let mut counter = 0;
        for (sequence, rows) in tiles() {
            let Range { start: first, end } = chunks(sequence, &rows);
            let chunks = end - first;
            let wanted = (rows.len() * chunks).div_ceil(most).min(chunks);
            let states = chunks * rows.len() * shape.group;
            for kv_head in 0..shape.kv_heads {
                let fits = (self.states + states) * shape.state <= MAX_STATES;
                let pieces = if shape.threads > 1 && fits { wanted } else { 1 };
                let split = Split { states: self.states, counter, pieces: pieces as u32, first, chunks };
                for piece in 0..pieces {
                    let chunks = first + piece * chunks / pieces..first + (piece + 1) * chunks / pieces;
                    let split = (pieces > 1).then_some(split);
                    self.pieces.push(Piece { sequence, rows: rows.clone(), kv_head, chunks, split });
                }
                if pieces > 1 {
                    (self.states, counter) = (self.states + states, counter + 1);
                }
            }
        }
        // Pieces of equal size stay in this order, because the heads of a block are adjacent in memory.
        let place = |piece: &Piece| (piece.sequence, piece.rows.start, piece.chunks.start, piece.kv_head);
        self.pieces
            .sort_unstable_by_key(|piece| (Reverse(piece.rows.len() * piece.chunks.len()), place(piece)));
        self.done.resize_with(counter, AtomicU32::default);
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Number of states that the pieces share.
    pub(super) fn states(&self) -> usize {
        self.states
    }

    /// Marks a piece as finished; returns whether it was the tile's last one, which has to join the states.
    pub(super) fn finish(&self, split: &Split) -> bool {
        // Each piece adds with release and the last one with acquire, so the last one sees what the others
        // wrote.
        let done = &self.done[split.counter];
        let last = done.fetch_add(1, Ordering::AcqRel) + 1 == split.pieces;
        if last {
            done.store(0, Ordering::Relaxed); // for the next call, which starts after this one ended
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(start: usize, count: usize, position: usize) -> SequenceRows<'static> {
        SequenceRows { rows: start..start + count, position, end: position + count, blocks: &[] }
    }

    /// Checks that the plan's pieces cover every chunk of every row and head once; returns the number of
    /// pieces.
    fn check(threads: usize, group: usize, sequences: &[SequenceRows<'_>]) -> usize {
        check_window(threads, group, (usize::MAX, false, 0), sequences)
    }

    fn check_window(
        threads: usize,
        group: usize,
        (window, is_chunked, ahead): (usize, bool, usize),
        sequences: &[SequenceRows<'_>],
    ) -> usize {
        let mut plan = Plan::default();
        plan.make(PlanShape { threads, group, kv_heads: 2, window, is_chunked, ahead, state: 80 }, sequences);
        let mut taken = std::collections::BTreeSet::new();
        let mut states = std::collections::BTreeSet::new();
        for piece in plan.pieces() {
            assert!(!piece.rows.is_empty() && !piece.chunks.is_empty());
            for row in piece.rows.clone() {
                for chunk in piece.chunks.clone() {
                    assert!(taken.insert((piece.sequence, row, piece.kv_head, chunk)));
                }
            }
            if let Some(split) = &piece.split {
                let queries = piece.rows.len() * group;
                for chunk in piece.chunks.clone() {
                    for i in 0..queries {
                        let state = split.states + (chunk - split.first) * queries + i;
                        assert!(states.insert(state) && state < plan.states());
                    }
                }
            }
        }
        for (index, sequence) in sequences.iter().enumerate() {
            for row in 0..sequence.rows.len() {
                let position = sequence.position + row;
                let end = seen_to(position, ahead, sequence.end).div_ceil(CHUNK);
                for chunk in seen_from(position, window, is_chunked) / CHUNK..end {
                    assert!((0..2).all(|head| taken.contains(&(index, row, head, chunk))));
                }
            }
        }
        plan.pieces().len()
    }

    #[test]
    fn pieces_cover_everything_once() {
        let batch: Vec<SequenceRows<'_>> = (0..32).map(|i| rows(i, 1, 255 + i)).collect();
        for threads in [1, 2, 8] {
            assert_eq!(check(threads, 7, &batch[..1]), 2, "one chunk is not split");
            check(threads, 7, &batch);
            check(threads, 4, &[rows(0, 100, 0), rows(100, 1, 5000), rows(101, 64, 700)]);
            check(threads, 128, &[rows(0, 3, 1000)]);
        }
        assert_eq!(check(1, 7, &[rows(0, 1, 32_767)]), 2, "one thread goes through all");
        assert!(check(2, 7, &[rows(0, 1, 32_767)]) >= 8);
        assert_eq!(check(64, 64, &[rows(0, 2000, 100_000)]) % 2, 0, "bounded by the states kept");
    }

    #[test]
    fn pieces_cover_windows_and_little_more() {
        let batch = [rows(0, 100, 0), rows(100, 1, 5000), rows(101, 64, 700), rows(165, 3, 9000)];
        for (threads, window) in
            [1, 2, 8].into_iter().flat_map(|t| [1, 2, 255, 256, 257, 4096].map(|w| (t, w)))
        {
            check_window(threads, 7, (window, false, 0), &batch);
            check_window(threads, 7, (window, true, 0), &batch);
            check_window(threads, 7, (window, false, window - 1), &batch);
            check_window(threads, 7, (usize::MAX, false, usize::MAX), &batch);
        }
        assert_eq!(check_window(2, 7, (200, false, 0), &[rows(0, 1, 32_767)]), 2, "one chunk of 128");
    }

    #[test]
    fn the_last_of_a_tile_joins() {
        let mut plan = Plan::default();
        let sequences = [rows(0, 1, 10_000)];
        for _ in 0..2 {
            plan.make(
                PlanShape {
                    threads: 2,
                    group: 4,
                    kv_heads: 1,
                    window: usize::MAX,
                    is_chunked: false,
                    ahead: 0,
                    state: 80,
                },
                &sequences,
            );
            let split = plan.pieces()[0].split.expect("long contexts are split");
            let last: Vec<bool> = plan.pieces().iter().map(|_| plan.finish(&split)).collect();
            assert!(last.len() > 1 && last.iter().rev().skip(1).all(|last| !last) && last[last.len() - 1]);
        }
    }
}
