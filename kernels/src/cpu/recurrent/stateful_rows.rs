//! The rows of a step by sequence.

use std::ops::Range;

/// Most draft rows that a slot can hold back.
pub const MOST_DRAFTED: usize = 15;

/// The rows of one sequence in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatefulRows {
    /// The sequence's rows of the batch, at least one, in the order of their positions.
    pub rows: Range<usize>,
    /// Slot of the sequence's state.
    pub slot: u32,
    /// Position of the first row.
    pub position: u32,
    /// How many of the last rows are drafts, at most [`MOST_DRAFTED`]. They have outputs, but the state stays
    /// before them.
    pub drafts: usize,
    /// Slots that get a copy of the state on its way, by ascending position.
    pub saves: Vec<StateSave>,
}

/// A copy of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSave {
    /// Tokens in the copied state: after those that the slot had for good before the step, drafts not
    /// included, and not after the last row that is no draft.
    pub position: u32,
    /// Slot to write, another than those that are read.
    pub slot: u32,
}
