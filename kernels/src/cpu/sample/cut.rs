//! Top-k and top-p: selects the tokens that can be drawn.
//!
//! Tokens rank by descending logit, and equal logits by ascending id; tokens of weight zero are excluded.
//! Only tokens above a floor are examined, chosen so that enough tokens are known to reach it. Top-p keeps
//! thousands of tokens only if the distribution is flat; `flat` handles that case.
//!
//! Top-p adds weights as integers in units of 2^-44. Such sums are exact and independent of order, so a
//! device that adds in any other order finds the same cut. Rounding a weight changes it by at most 2^-45; for
//! all weights above 2^-21, f32 is coarser than that.

use std::cmp::Ordering;

use super::super::simd::Isa;
use super::peaks::Peaks;
use super::weigh::{Weigh, Weighting, mass};

/// The first attempt at top-p takes the tokens that reach the block maximum of this rank (a lower rank in
/// small vocabularies). That suffices for most distributions.
const FIRST_ATTEMPT_BLOCKS: usize = 256;

/// Tokens that can be drawn, best first, and their weights.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) tokens: Vec<u32>,
    pub(super) weights: Vec<f32>,
}

/// Logits and how to weigh them.
#[derive(Clone, Copy)]
pub(super) struct LogitView<'a> {
    pub(super) isa: Isa,
    pub(super) logits: &'a [f32],
    pub(super) weighting: Weighting,
}

impl LogitView<'_> {
    /// Ranks tokens, best first.
    pub(super) fn before(&self, a: &u32, b: &u32) -> Ordering {
        self.logits[*b as usize].total_cmp(&self.logits[*a as usize]).then(a.cmp(b))
    }
}

impl Kept {
    /// Keeps the `count` best tokens with a weight, or all if there are fewer. `peaks` must have surveyed
    /// these logits.
    pub(super) fn take_best(&mut self, view: LogitView<'_>, peaks: &mut Peaks, count: usize) {
        for floor in [peaks.floor(count), f32::NEG_INFINITY] {
            self.take_reaching(view, peaks, floor);
            // If the floor itself has no weight, no token below it has one.
            if self.tokens.len() >= count || view.weighting.is_out(floor) {
                break;
            }
        }
        if count < self.tokens.len() {
            self.tokens.select_nth_unstable_by(count, |a, b| view.before(a, b));
            self.tokens.truncate(count);
        }
        self.sort(view);
    }

    /// Keeps the tokens with a weight and a logit of at least `floor`, unsorted.
    fn take_reaching(&mut self, view: LogitView<'_>, peaks: &Peaks, floor: f32) {
        peaks.reaching(view.logits, floor, &mut self.tokens);
        self.weigh(view);
        let mut weights = self.weights.iter();
        self.tokens.retain(|_| weights.next().is_some_and(|weight| *weight > 0.0));
    }

    fn weigh(&mut self, view: LogitView<'_>) {
        self.weights.clear();
        self.weights.extend(self.tokens.iter().map(|token| view.logits[*token as usize]));
        view.isa.run(Weigh { values: &mut self.weights, weighting: view.weighting });
    }

    fn sort(&mut self, view: LogitView<'_>) {
        self.tokens.sort_unstable_by(|a, b| view.before(a, b));
        self.weigh(view);
    }

    /// Keeps the best tokens whose weights reach the share `top_p` of the total.
    pub(super) fn cut_mass(&mut self, top_p: f32) {
        let total = self.weights.iter().fold(0u64, |sum, weight| sum.saturating_add(mass(*weight)));
        if let Some(count) = self.count_reaching(0, goal(total, top_p)) {
            self.tokens.truncate(count);
            self.weights.truncate(count);
        }
    }

    /// Keeps the fewest best tokens whose mass reaches `goal`. Returns false if the tokens of the first
    /// attempt do not; see [`FIRST_ATTEMPT_BLOCKS`].
    pub(super) fn take_mass(&mut self, view: LogitView<'_>, peaks: &mut Peaks, goal: f64) -> bool {
        let floor = peaks.floor(FIRST_ATTEMPT_BLOCKS.min(peaks.blocks() / 8));
        self.take_reaching(view, peaks, floor);
        self.sort(view);
        let count = self.count_reaching(0, goal);
        if let Some(count) = count {
            self.tokens.truncate(count);
            self.weights.truncate(count);
        }
        count.is_some()
    }

    /// Sorts the kept tokens. Returns the first one at which the mass `before` them and theirs reach `goal`.
    pub(super) fn last_reaching(&mut self, view: LogitView<'_>, before: u64, goal: f64) -> Option<u32> {
        self.sort(view);
        self.count_reaching(before, goal).map(|count| self.tokens[count - 1])
    }

    /// Number of tokens, at least one, at which the mass `before` them and theirs reach `goal`.
    fn count_reaching(&self, before: u64, goal: f64) -> Option<usize> {
        let mut sum = before;
        let place = self.weights.iter().position(|weight| {
            sum = sum.saturating_add(mass(*weight));
            sum as f64 >= goal
        });
        place.map(|place| place + 1)
    }
}

/// The mass that is the share `top_p` of `total`.
pub(super) fn goal(total: u64, top_p: f32) -> f64 {
    total as f64 * f64::from(top_p)
}
