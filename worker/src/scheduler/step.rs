//! A planned step: its batch, and its size: rows, budget and start, without the tokens.

use skein_node::clock::Timestamp;

use super::step_time::Work;
use crate::backend::Batch;

/// The size of a planned step.
#[derive(Debug)]
pub struct Step {
    /// Counted from 1.
    pub(super) number: u64,
    /// All rows: prefill (prompt and recomputed tokens) and decode.
    pub(super) rows: u32,
    /// Sequences decoding in this step.
    pub(super) streams: u32,
    /// Rows of these sequences: one for each sequence and one for each draft token.
    pub(super) stream_rows: u32,
    /// Positions attended to, summed over all rows.
    pub(super) attended: u64,
    /// Most rows allowed.
    pub(super) budget: u32,
    /// Blocks that drafts may still take.
    pub(super) draft_blocks: u32,
    pub(super) started: Timestamp,
}

impl Step {
    /// Rows of the step, one for each token that it computes.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// When it was planned.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Rows over prompts and recomputed tokens.
    pub(super) fn prompt_rows(&self) -> u32 {
        self.rows - self.stream_rows
    }

    /// The work planned so far.
    pub(super) fn work(&self) -> Work {
        Work { tokens: self.rows, attended: self.attended }
    }

    /// Rows still available in the budget.
    pub(super) fn left(&self) -> u32 {
        self.budget - self.rows
    }
}

/// A planned step: the batch for the backend and the record that [`super::Scheduler::commit`] needs
/// afterwards.
#[derive(Debug)]
pub struct Plan {
    /// Goes to the backend.
    pub batch: Batch,
    /// Goes to [`super::Scheduler::commit`].
    pub step: Step,
}
