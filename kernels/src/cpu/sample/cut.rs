//! Top-k and top-p: which tokens stay.
//!
//! Tokens are taken by descending logit, the lower id first among equals; those with weight zero are out. Few are looked
//! at: those that reach a logit which enough tokens are known to reach. Only of a flat distribution top-p keeps thousands:
//! `flat` cuts that one.
//!
//! Top-p adds weights as whole numbers of 2^-44. Such sums are exact, so they depend on no order, and a device that adds
//! them in any other way finds the same cut. A weight is rounded by at most 2^-45, where f32 itself is coarser than that
//! for all weights above 2^-21.

use std::cmp::Ordering;

use super::super::simd::Isa;
use super::peaks::Peaks;
use super::weigh::{Heat, Weigh, mass};

/// Blocks whose maxima bound the first look for top-p; few distributions need more than their tokens.
const FIRST_LOOK: usize = 256;

/// Tokens that stay, best first, and their weights.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) tokens: Vec<u32>,
    pub(super) weights: Vec<f32>,
}

/// Logits, and what is known of them.
#[derive(Clone, Copy)]
pub(super) struct Looked<'a> {
    pub(super) isa: Isa,
    pub(super) logits: &'a [f32],
    pub(super) heat: Heat,
}

impl Looked<'_> {
    /// The order in which tokens are taken.
    pub(super) fn before(&self, a: &u32, b: &u32) -> Ordering {
        self.logits[*b as usize].total_cmp(&self.logits[*a as usize]).then(a.cmp(b))
    }
}

impl Kept {
    /// Takes the `count` best tokens that have a weight; all if there are no more. `peaks` are those of the logits.
    pub(super) fn take_best(&mut self, looked: Looked<'_>, peaks: &mut Peaks, count: usize) {
        for floor in [peaks.floor(count), f32::NEG_INFINITY] {
            self.take_reaching(looked, peaks, floor);
            // Below the floor only those could follow that have a weight although it has none.
            if self.tokens.len() >= count || looked.heat.is_out(floor) {
                break;
            }
        }
        if count < self.tokens.len() {
            self.tokens.select_nth_unstable_by(count, |a, b| looked.before(a, b));
            self.tokens.truncate(count);
        }
        self.sort(looked);
    }

    /// Takes the tokens that have a weight and a logit of at least `floor`, in no order yet.
    fn take_reaching(&mut self, looked: Looked<'_>, peaks: &Peaks, floor: f32) {
        peaks.reaching(looked.logits, floor, &mut self.tokens);
        self.weigh(looked);
        let mut weights = self.weights.iter();
        self.tokens.retain(|_| weights.next().is_some_and(|weight| *weight > 0.0));
    }

    fn weigh(&mut self, looked: Looked<'_>) {
        self.weights.clear();
        self.weights.extend(self.tokens.iter().map(|token| looked.logits[*token as usize]));
        looked.isa.run(Weigh { values: &mut self.weights, heat: looked.heat });
    }

    fn sort(&mut self, looked: Looked<'_>) {
        self.tokens.sort_unstable_by(|a, b| looked.before(a, b));
        self.weigh(looked);
    }

    /// Keeps the first that have the share `top_p` of all these together.
    pub(super) fn cut_mass(&mut self, top_p: f32) {
        let total = self.weights.iter().fold(0u64, |sum, weight| sum.saturating_add(mass(*weight)));
        if let Some(count) = self.count_reaching(0, goal(total, top_p)) {
            self.tokens.truncate(count);
            self.weights.truncate(count);
        }
    }

    /// Takes the best tokens that weigh `goal` together, and says whether they were among the first few blocks' best.
    pub(super) fn take_mass(&mut self, looked: Looked<'_>, peaks: &mut Peaks, goal: f64) -> bool {
        let floor = peaks.floor(FIRST_LOOK.min(peaks.blocks() / 8));
        self.take_reaching(looked, peaks, floor);
        self.sort(looked);
        let count = self.count_reaching(0, goal);
        if let Some(count) = count {
            self.tokens.truncate(count);
            self.weights.truncate(count);
        }
        count.is_some()
    }

    /// Takes those of `tokens` that weigh `goal` together with the mass `before` them; the last one.
    pub(super) fn last_reaching(&mut self, looked: Looked<'_>, before: u64, goal: f64) -> Option<u32> {
        self.sort(looked);
        self.count_reaching(before, goal).map(|count| self.tokens[count - 1])
    }

    /// How many tokens from the front weigh `goal` together with the mass `before` them; at least one.
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
