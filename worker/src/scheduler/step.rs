//! The shape of a step: its rows and its budget, without the tokens.

use skein_node::clock::Timestamp;

use super::step_time::Work;

/// The shape of a planned step.
#[derive(Debug)]
pub struct Step {
    /// Counted from 1.
    pub(super) number: u64,
    /// All rows: those over prompts (or over tokens computed again), and those of streams.
    pub(super) rows: u32,
    /// Sequences that decode in it.
    pub(super) streams: u32,
    /// Their rows: one each, and those of their drafts.
    pub(super) stream_rows: u32,
    /// Positions that all rows attend to, summed up.
    pub(super) attended: u64,
    /// Most rows it may have.
    pub(super) budget: u32,
    pub(super) started: Timestamp,
}

impl Step {
    /// Rows over prompts.
    pub(super) fn prompt_rows(&self) -> u32 {
        self.rows - self.stream_rows
    }

    /// What it computes so far.
    pub(super) fn work(&self) -> Work {
        Work { tokens: self.rows, attended: self.attended }
    }

    /// Rows it may still have.
    pub(super) fn left(&self) -> u32 {
        self.budget - self.rows
    }
}
