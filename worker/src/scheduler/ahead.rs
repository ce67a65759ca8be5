//! What is under way of a sequence: its shares of the steps that are not committed, how far it will be when they are, and
//! why it sits out a step. The next step is planned by this.
//!
//! Each draw under way counts here as one token whose place is known and whose value is not. A plain draw's token is carried
//! from step to step on the device. Where more than its value is unknown (samples part, a draft is verified), the sequence
//! sits out until the step is committed.

use super::Limits;
use super::request::Hold;
use super::sequence::Sequence;
use super::shares::{Draws, Share};
use crate::backend::Carried;

/// Why a running sequence has no rows to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    /// Its last token is being drawn: its blocks come back when that is known.
    Ending,
    /// Its samples part when their first tokens are known.
    Parting,
    /// A draft of it is being verified: how far it goes is not known.
    Verifying,
    /// A token that the next step needs is being drawn, and not by the step just before: it cannot be carried.
    Drawing,
    /// Something else has to come first.
    Held(Hold),
}

impl Sequence {
    /// Its latest draw under way and the step that draws it. That is always in the last share: what comes after a draw
    /// draws again.
    fn last_draw(&self) -> Option<(u64, &Draws)> {
        let last = self.shares.back().filter(|share| !matches!(share.draws, Draws::None))?;
        Some((last.step, &last.draws))
    }

    /// Draws under way, each of which gives at least one token.
    fn draws_under_way(&self) -> u32 {
        self.shares.iter().filter(|share| !matches!(share.draws, Draws::None)).count() as u32
    }

    /// The position of the first row that no step has yet.
    pub fn next_row(&self) -> u32 {
        self.computed + self.shares.iter().map(|share| share.rows).sum::<u32>()
    }

    /// Its length with the tokens under way: where a draft is verified, the least that it may be.
    pub fn len_ahead(&self) -> u32 {
        self.len() + self.draws_under_way()
    }

    /// Its last token is being drawn.
    pub fn is_ending(&self) -> bool {
        self.len_ahead() >= self.max_len
    }

    /// Blocks that it still needs for its tokens, and one to grow.
    pub fn blocks_to_grow(&self, limits: &Limits) -> u32 {
        if self.is_ending() {
            return 0;
        }
        let longest = (self.len_ahead() + limits.block_size).min(limits.max_model_len);
        // Samples that are still one sequence will each copy the partly filled block they share.
        let needed = longest.div_ceil(limits.block_size) + self.samples.len() as u32 - 1;
        needed.saturating_sub(self.table.blocks().len() as u32)
    }

    /// Why it has no rows in `step`, the one being planned, if it has none.
    pub fn pause(&self, step: u64) -> Option<Pause> {
        if self.is_ending() {
            return Some(Pause::Ending);
        }
        let under_way = self.last_draw().and_then(|(drawn_in, draws)| match draws {
            Draws::Parting { .. } => Some(Pause::Parting),
            Draws::Verify { .. } => Some(Pause::Verifying),
            // A history may end with one token that is not known, and only the step just before says which.
            Draws::Next { .. } if drawn_in + 1 < step => Some(Pause::Drawing),
            Draws::Next { .. } if self.params.needs_history() && self.draws_under_way() > 1 => {
                Some(Pause::Drawing)
            }
            Draws::Next { .. } | Draws::None => None,
        });
        under_way.or(self.hold.map(Pause::Held))
    }

    /// Rows to plan in `step` before its next draw.
    pub fn pending(&self, step: u64) -> u32 {
        if self.pause(step).is_some() { 0 } else { self.len_ahead() - self.next_row() }
    }

    /// One row away from its next draw, prompt behind it.
    pub fn is_decoding(&self, step: u64) -> bool {
        self.pending(step) == 1 && self.len_ahead() > self.prompt_len
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
        match self.last_draw() {
            Some((_, &Draws::Next { want })) => Carried { at: at as u32, want: want as u32 },
            other => unreachable!("only a plain draw's token is carried, not that of {other:?}"),
        }
    }
}
