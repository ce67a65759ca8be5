//! States of recurrent layers in a batch: their slots, copies and saves.

/// Number of a slot, which holds one state of every recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub u32);

/// Most draft tokens of a sequence in one step: a slot keeps the rows that may turn out wrong apart.
pub const MOST_DRAFTED_WITH_STATES: u32 = skein_kernels::cpu::recurrent::MOST_DRAFTED as u32;

/// A sequence's state in a step.
///
/// A row at position 0 starts from an empty state. Otherwise the slot holds the state before the first row,
/// or one some rows before it with draft rows of an earlier step after it; the step first applies those of
/// them that lie before its first row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchState {
    /// Slot that is read and written.
    pub slot: StateId,
    /// Last rows that are drafts: the slot's state stays before them.
    pub drafts: u32,
    /// Copies of the state on its way, by ascending position.
    pub saves: Vec<StateSave>,
}

impl BatchState {
    /// The state of a batch's only sequence. Backends ignore it if the model has no recurrent layers.
    pub fn alone() -> Self {
        Self { slot: StateId(0), drafts: 0, saves: Vec::new() }
    }
}

/// Stores a state in a second slot once it has reached a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSave {
    /// Number of tokens in the state.
    pub position: u32,
    /// Slot to write.
    pub to: StateId,
}

/// Copies a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateCopy {
    /// Slot to read.
    pub from: StateId,
    /// Slot to write.
    pub to: StateId,
}
