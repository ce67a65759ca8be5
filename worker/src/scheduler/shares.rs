//! A sequence's shares of the steps under way, and what each draws.

use std::ops::Range;

/// A sequence's share of a step.
#[derive(Debug)]
pub(super) struct Share {
    /// Which step.
    pub step: u64,
    pub rows: u32,
    /// Which of the batch's wants are its scores.
    pub scores: Range<usize>,
    pub draws: Draws,
}

/// What a share draws, by the wants of its step's batch.
#[derive(Debug)]
pub(super) enum Draws {
    /// Its rows end before the sequence's last token.
    None,
    /// The next token.
    Next { want: usize },
    /// The first tokens of samples that were one sequence so far.
    Parting { wants: Range<usize>, samples: Vec<u32> },
    /// The next tokens: a draft of `len` tokens is verified, the last `len` of the share's rows.
    Verify { want: usize, len: u32 },
}
