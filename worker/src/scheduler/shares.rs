//! How far a sequence will be when the steps under way have ended: what the next step is planned by.
//!
//! At most one of its tokens is drawn but not known yet. Its place counts here as if it were; its value is carried from
//! step to step on the device.

use std::ops::Range;

use super::sequence::Sequence;
use crate::backend::Carried;

/// A sequence's share of a step: rows, and which of the batch's wants are its draws and its scores.
#[derive(Debug)]
pub(super) struct Share {
    /// Which step.
    pub step: u64,
    pub rows: u32,
    pub samples: Range<usize>,
    pub scores: Range<usize>,
}

impl Sequence {
    /// Its draws under way, as indices of their step's wants. They are always in the last share: what comes after a
    /// draw draws again.
    fn draws(&self) -> Option<&Range<usize>> {
        self.shares.back().map(|share| &share.samples).filter(|samples| !samples.is_empty())
    }

    /// The position of the first row that no step has yet.
    pub fn next_row(&self) -> u32 {
        self.computed + self.shares.iter().map(|share| share.rows).sum::<u32>()
    }

    /// Its length with the token under way.
    pub fn len_ahead(&self) -> u32 {
        self.len() + u32::from(self.draws().is_some())
    }

    /// Its last token is being drawn: its blocks come back when that is known.
    pub fn is_ending(&self) -> bool {
        self.len_ahead() >= self.max_len
    }

    /// Its samples are about to part: each goes on alone, when their tokens are known.
    fn is_parting(&self) -> bool {
        self.draws().is_some_and(|draws| draws.len() > 1)
    }

    /// Rows to plan before its next draw.
    pub fn pending(&self) -> u32 {
        if self.is_ending() || self.is_parting() { 0 } else { self.len_ahead() - self.next_row() }
    }

    /// One row away from its next draw, prompt behind it.
    pub fn is_decoding(&self) -> bool {
        self.pending() == 1 && self.len_ahead() > self.prompt_len
    }

    /// Whether it has rows in `step`.
    pub fn is_in(&self, step: u64) -> bool {
        self.shares.back().is_some_and(|share| share.step == step)
    }

    /// Its share of `step`, the oldest one under way.
    pub fn take_share(&mut self, step: u64) -> Option<Share> {
        self.shares.pop_front_if(|share| share.step == step)
    }

    /// The token under way goes to index `at` of the batch being planned.
    pub fn carried_to(&self, at: usize) -> Carried {
        let draws = self.draws().expect("a token that is not known is being drawn");
        Carried { at: at as u32, want: draws.start as u32 }
    }
}
