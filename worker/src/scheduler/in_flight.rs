//! State of a sequence's uncommitted steps: its rows in them, its length after them, and why it may have to
//! skip the next step.
//!
//! Each draw in flight counts as one token with a known position and an unknown value. The token of a plain
//! draw is carried from step to step on the device. If more than its value is unknown (samples fork, a draft
//! is being verified), the sequence skips steps until that step is committed.

use super::Limits;
use super::planned_rows::{Draws, PlannedRows};
use super::sequence::Sequence;
use crate::backend::Carried;
use crate::kv_cache::KvCache;

/// Why a running sequence has no rows to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    /// Its last token is being drawn; its blocks come back once the token is known.
    Ending,
    /// Its samples fork once their first tokens are known.
    Forking,
    /// Its draft is being verified, so its length is not known.
    Verifying,
    /// The next step needs a token that is still being drawn, but not by the step just before, so it
    /// cannot be carried.
    Drawing,
}

impl Sequence {
    /// Its latest draw in flight and the number of that step. It is always in the last entry, because after
    /// one draw every step draws.
    fn last_draw(&self) -> Option<(u64, &Draws)> {
        let last = self.planned.back().filter(|planned| !matches!(planned.draws, Draws::None))?;
        Some((last.step, &last.draws))
    }

    /// Draws in flight; each gives at least one token.
    fn draws_in_flight(&self) -> u32 {
        self.planned.iter().filter(|planned| !matches!(planned.draws, Draws::None)).count() as u32
    }

    /// Position of the first row not planned yet.
    pub fn next_row(&self) -> u32 {
        self.computed + self.planned.iter().map(|planned| planned.rows).sum::<u32>()
    }

    /// Its length including tokens in flight; while a draft is verified, the least that it may be.
    pub fn planned_len(&self) -> u32 {
        self.len() + self.draws_in_flight()
    }

    /// Its last token is being drawn.
    pub fn is_ending(&self) -> bool {
        self.planned_len() >= self.max_len
    }

    /// Blocks still needed for its tokens and for one more block of growth.
    pub fn blocks_to_grow(&self, limits: &Limits) -> u32 {
        if self.is_ending() {
            return 0;
        }
        let longest = (self.planned_len() + limits.block_size).min(limits.max_model_len);
        // Samples that still share one sequence will each copy the partly filled block.
        let needed = longest.div_ceil(limits.block_size) + self.samples.len() as u32 - 1;
        needed.saturating_sub(self.table.blocks().len() as u32)
    }

    /// Window blocks still needed for its tokens and for one more block of growth.
    pub fn windows_to_grow(&self, kv: &KvCache) -> u32 {
        if self.is_ending() {
            return 0;
        }
        let longest = (self.planned_len() + kv.block_size()).min(self.max_len);
        let needed = kv.windows_for(longest) + self.samples.len() as u32 - 1;
        needed.saturating_sub(kv.window_bases(&self.table).len() as u32)
    }

    /// Why it has no rows in `step`, the one being planned; `None` if it may have some.
    pub fn pause(&self, step: u64) -> Option<Pause> {
        if self.is_ending() {
            return Some(Pause::Ending);
        }
        self.last_draw().and_then(|(drawn_in, draws)| match draws {
            Draws::Fork { .. } => Some(Pause::Forking),
            // Its only draw is its last.
            Draws::Pool { .. } => Some(Pause::Ending),
            Draws::Verify { .. } => Some(Pause::Verifying),
            // A history may end with one unknown token, which only the step just before can supply. The next
            // mask and the end of a banned sequence depend on that token.
            Draws::Next { .. } if drawn_in + 1 < step || !self.carries || self.needs_known_tokens() => {
                Some(Pause::Drawing)
            }
            // A draft must follow a known token. If drafts are usually right, waiting for that token pays
            // off.
            Draws::Next { .. } if self.progress.should_wait() => Some(Pause::Drawing),
            Draws::Next { .. } if self.params.needs_history() && self.draws_in_flight() > 1 => {
                Some(Pause::Drawing)
            }
            Draws::Next { .. } | Draws::None => None,
        })
    }

    /// Rows to plan in `step` before its next draw.
    pub fn pending(&self, step: u64) -> u32 {
        if self.pause(step).is_some() { 0 } else { self.planned_len() - self.next_row() }
    }

    /// The prompt is done and it is one row away from its next draw.
    pub fn is_decoding(&self, step: u64) -> bool {
        self.pending(step) == 1 && self.planned_len() > self.prompt_len
    }

    /// Whether it has rows in `step`.
    pub fn is_in(&self, step: u64) -> bool {
        self.planned.back().is_some_and(|planned| planned.step == step)
    }

    /// Takes its rows of `step`, the oldest in flight.
    pub fn take_planned(&mut self, step: u64) -> Option<PlannedRows> {
        self.planned.pop_front_if(|planned| planned.step == step)
    }

    /// A carry of the token in flight to index `at` of the batch being planned.
    pub fn carried_to(&self, at: usize) -> Carried {
        match self.last_draw() {
            Some((_, &Draws::Next { want })) => Carried { at: at as u32, want: want as u32 },
            other => unreachable!("only a plain draw's token is carried, not that of {other:?}"),
        }
    }
}
