//! A sequence's rows in one step, and what they draw.

use std::ops::Range;

/// A sequence's rows in a step that is planned or in flight.
#[derive(Debug)]
pub(super) struct PlannedRows {
    /// Number of the step.
    pub step: u64,
    pub rows: u32,
    /// Its prompt scores among the batch's wants.
    pub scores: Range<usize>,
    pub draws: Draws,
}

/// What a sequence's rows draw, by index into the wants of the step's batch.
#[derive(Debug)]
pub(super) enum Draws {
    /// Nothing: the rows end before the sequence's last token.
    None,
    /// The next token.
    Next { want: usize },
    /// The first tokens of samples that share one sequence until now.
    Fork { wants: Range<usize>, samples: Vec<u32> },
    /// No token, but the vector of the prompt.
    Pool { want: usize },
    /// The next tokens: verifies a draft of `len` tokens, which are the last rows.
    Verify { want: usize, len: u32 },
}
