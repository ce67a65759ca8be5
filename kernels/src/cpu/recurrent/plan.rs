//! Divides a step into passes, so that buffers are bounded, and joins its sequences to the states of a layer.
//! Pure; no result depends on it.

use std::ops::Range;

use super::mark::Mark;
use super::stateful_rows::{MOST_DRAFTED, StatefulRows};

/// Rows of a pass, besides drafts and pending rows. The queries and keys of so many rows of a head stay in
/// the second-level cache.
const ROWS_AT_ONCE: usize = 512;
/// Rows of a run, the unit in which rows are given to threads outside the recurrence.
pub(super) const ROWS_PER_RUN: usize = 16;

/// The passes of a step. Reused, because all layers of a step have the same passes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    sequences: Vec<StatefulRows>,
    pieces: Vec<StatefulRows>,
    /// Ranges of `pieces`.
    passes: Vec<Range<usize>>,
}

impl Plan {
    /// Plans the rows of all `sequences`: a pass has at most one piece of a sequence.
    ///
    /// # Panics
    /// If sequences share a slot or rows, or if a sequence has no rows or too many drafts.
    pub(super) fn make(&mut self, sequences: &[StatefulRows]) {
        if self.sequences == sequences {
            return;
        }
        self.sequences.clear(); // so that a plan that panics is made again
        check(sequences);
        self.pieces.clear();
        self.passes.clear();
        let (mut start, mut rows) = (0, 0);
        for sequence in sequences {
            let mut rest = sequence.clone();
            while !rest.rows.is_empty() {
                let room = ROWS_AT_ONCE - rows;
                let piece = take(&mut rest, room);
                rows += piece.rows.len();
                self.pieces.push(piece);
                if !rest.rows.is_empty() || rows >= ROWS_AT_ONCE {
                    self.passes.push(start..self.pieces.len());
                    (start, rows) = (self.pieces.len(), 0);
                }
            }
        }
        if start < self.pieces.len() {
            self.passes.push(start..self.pieces.len());
        }
        self.sequences.extend_from_slice(sequences);
    }

    /// The pieces of each pass.
    pub(super) fn passes(&self) -> impl Iterator<Item = &[StatefulRows]> {
        self.passes.iter().map(|pass| &self.pieces[pass.clone()])
    }
}

/// Takes about the first `room` rows off a sequence, but none after the next position to save. Drafts are not
/// divided.
fn take(rest: &mut StatefulRows, room: usize) -> StatefulRows {
    let known = rest.rows.len() - rest.drafts;
    let after = |position: u32| position.saturating_sub(rest.position) as usize;
    let next = rest.saves.iter().map(|save| after(save.position)).find(|rows| *rows > 0);
    let room = room.min(next.unwrap_or(usize::MAX));
    let mut piece = rest.clone();
    if known > room {
        piece.rows.end = rest.rows.start + room;
        piece.drafts = 0;
    }
    let end = rest.position + known.min(room) as u32;
    piece.saves.retain(|save| save.position == end && save.position > piece.position);
    rest.rows.start = piece.rows.end;
    rest.position += piece.rows.len() as u32;
    piece
}

fn check(sequences: &[StatefulRows]) {
    let own = sequences.iter().map(|sequence| sequence.slot);
    let saved = sequences.iter().flat_map(|sequence| sequence.saves.iter().map(|save| save.slot));
    let mut slots: Vec<u32> = own.chain(saved).collect();
    slots.sort_unstable();
    assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "each sequence has a slot of its own");
    let mut rows: Vec<(usize, usize)> = sequences.iter().map(|s| (s.rows.start, s.rows.end)).collect();
    rows.sort_unstable();
    assert!(rows.windows(2).all(|pair| pair[0].1 <= pair[1].0), "each sequence has rows of its own");
    for StatefulRows { rows, drafts, position, saves, .. } in sequences {
        let end = position + (rows.len() - drafts.min(&rows.len())) as u32;
        assert!(saves.is_sorted_by_key(|save| save.position), "saves are in the order of their positions");
        assert!(saves.iter().all(|save| (1..=end).contains(&save.position)), "{saves:?} until {end}");
        assert!(!rows.is_empty() && *drafts <= rows.len().min(MOST_DRAFTED), "{drafts} drafts of {rows:?}");
    }
}

/// The rows that a pass computes for one slot of a layer: pending rows of the slot first, then rows of the
/// batch. Rows are counted from the slot's position.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    /// Index of the slot's part of the cache.
    pub(super) part: usize,
    /// Position of the first row: that of the slot.
    pub(super) position: u32,
    /// Pending rows to apply to the state.
    pub(super) replayed: usize,
    /// Rows of the batch.
    pub(super) rows: Range<usize>,
    /// How many of the last rows are drafts.
    pub(super) drafts: usize,
    /// First row of the pass.
    pub(super) first: usize,
}

impl Stretch {
    /// Joins a piece to its slot, which is at `mark`.
    ///
    /// # Panics
    /// If the piece's position is not in the slot's reach.
    pub(super) fn new(piece: &StatefulRows, part: usize, mark: Mark, first: usize) -> Self {
        let mark = if piece.position == 0 { Mark::default() } else { mark };
        let replayed = piece.position.checked_sub(mark.position).filter(|replayed| *replayed <= mark.pending);
        let Some(replayed) = replayed else {
            panic!("slot {} is at {mark:?} and cannot resume at {}", piece.slot, piece.position)
        };
        Self {
            part,
            position: mark.position,
            replayed: replayed as usize,
            rows: piece.rows.clone(),
            drafts: piece.drafts,
            first,
        }
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.replayed + self.rows.len()
    }

    /// Rows that are applied to the state for good.
    pub(super) fn kept(&self) -> usize {
        self.len() - self.drafts
    }

    /// Where the slot is afterwards.
    pub(super) fn mark(&self) -> Mark {
        Mark { position: self.position + self.kept() as u32, pending: self.drafts as u32 }
    }

    /// The row of the batch that row `row` is, if it is not a pending one.
    pub(super) fn in_batch(&self, row: usize) -> Option<usize> {
        row.checked_sub(self.replayed).map(|row| self.rows.start + row)
    }
}

/// A run of rows of one stretch.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Index of the stretch.
    pub(super) stretch: usize,
    /// Rows of the stretch.
    pub(super) rows: Range<usize>,
}

/// Divides stretches into runs.
pub(super) fn runs(stretches: &[Stretch], runs: &mut Vec<Run>) {
    runs.clear();
    for (index, stretch) in stretches.iter().enumerate() {
        let len = stretch.len();
        let starts = (0..len).step_by(ROWS_PER_RUN);
        runs.extend(starts.map(|start| Run { stretch: index, rows: start..len.min(start + ROWS_PER_RUN) }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::stateful_rows::StateSave;
    use super::*;

    fn rows(start: usize, count: usize, slot: u32, position: u32, drafts: usize) -> StatefulRows {
        StatefulRows { rows: start..start + count, slot, position, drafts, saves: Vec::new() }
    }

    #[test]
    fn passes_cover_every_row_once_in_order_and_are_bounded() {
        let mut step = vec![rows(0, 1, 9, 7, 0), rows(1, 1300, 3, 40, 15), rows(1301, 30, 4, 0, 2)];
        step.extend((0..600).map(|i| rows(1331 + 4 * i, 4, 10 + i as u32, 1, 3)));
        let mut plan = Plan::default();
        plan.make(&step);
        let mut next: Vec<(usize, u32)> = step.iter().map(|s| (s.rows.start, s.position)).collect();
        for pass in plan.passes() {
            assert!(pass.iter().map(|piece| piece.rows.len()).sum::<usize>() < ROWS_AT_ONCE + 16);
            let slots: std::collections::BTreeSet<u32> = pass.iter().map(|piece| piece.slot).collect();
            assert_eq!(slots.len(), pass.len());
            for piece in pass {
                let of = step.iter().position(|s| s.slot == piece.slot).unwrap();
                assert_eq!((piece.rows.start, piece.position), next[of]);
                next[of] = (piece.rows.end, piece.position + piece.rows.len() as u32);
                let is_last = piece.rows.end == step[of].rows.end;
                assert_eq!(piece.drafts, if is_last { step[of].drafts } else { 0 });
            }
        }
        assert!(step.iter().zip(next).all(|(sequence, next)| sequence.rows.end == next.0));
    }

    #[test]
    fn passes_end_where_states_are_saved() {
        let save = |position, slot| StateSave { position, slot };
        let mut plan = Plan::default();
        let saves = vec![save(3, 5), save(7, 6), save(17, 7), save(18, 8)];
        plan.make(&[StatefulRows { saves: saves.clone(), ..rows(0, 14, 0, 6, 2) }, rows(14, 1, 9, 3, 0)]);
        let passes: Vec<&[StatefulRows]> = plan.passes().collect();
        let firsts = passes.iter().map(|pass| (pass[0].position, pass[0].rows.len(), pass[0].saves.clone()));
        let expected =
            [(6, 1, saves[1..2].to_vec()), (7, 10, saves[2..3].to_vec()), (17, 3, saves[3..].to_vec())];
        assert!(firsts.eq(expected), "{passes:?}");
    }

    #[test]
    #[should_panic(expected = "a slot of its own")]
    fn a_slot_belongs_to_one_sequence() {
        Plan::default().make(&[rows(0, 1, 3, 0, 0), rows(1, 1, 3, 0, 0)]);
    }

    #[test]
    #[should_panic(expected = "rows of its own")]
    fn a_row_belongs_to_one_sequence() {
        Plan::default().make(&[rows(1, 2, 3, 0, 0), rows(0, 2, 4, 0, 0)]);
    }

    #[test]
    fn a_slot_resumes_within_its_pending_rows_only() {
        let mark = Mark { position: 10, pending: 3 };
        let at = |position| Stretch::new(&rows(5, 4, 0, position, 1), 0, mark, 0);
        assert_eq!((at(12).replayed, at(12).mark()), (2, Mark { position: 15, pending: 1 }));
        assert_eq!((at(0).replayed, at(0).mark()), (0, Mark { position: 3, pending: 1 }));
        assert_eq!(at(12).in_batch(1), None);
        assert_eq!(at(12).in_batch(2), Some(5));
        for position in [9, 14] {
            assert!(std::panic::catch_unwind(|| at(position)).is_err());
        }
    }
}
