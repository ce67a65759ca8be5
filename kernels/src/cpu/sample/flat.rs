//! Top-p over flat distributions, of which thousands of tokens stay. Counts tokens into buckets by logit and
//! sorts only the bucket with the cut.

use super::super::simd::{Kernel, Simd};
use super::cut::{Kept, LogitView};
use super::weigh::{Weighting, mass};

/// Number of buckets. At temperature 1 each is `1 / PER_UNIT` of a logit wide. Logits below the last bucket
/// have no mass: a weight of `e^-32` is less than half of 2^-44.
const BUCKETS: usize = 2048;
const PER_UNIT: f32 = 64.0;

/// Mass per bucket; the memory is reused between draws.
#[derive(Default)]
pub(super) struct Buckets {
    masses: Vec<u64>,
}

/// Zeroes the weights of all tokens except the best that reach `goal` together. `weights` are those of all
/// tokens and reach `goal`.
pub(super) fn cut(
    view: LogitView<'_>,
    weights: &mut [f32],
    goal: f64,
    buckets: &mut Buckets,
    kept: &mut Kept,
) {
    let LogitView { isa, logits, weighting } = view;
    buckets.masses.clear();
    buckets.masses.resize(BUCKETS, 0);
    isa.run(Count { logits, weights, weighting, masses: &mut buckets.masses });
    let mut before = 0u64;
    let holds_cut = |mass: &u64| {
        let reached = (before + mass) as f64 >= goal;
        before += if reached { 0 } else { *mass };
        reached
    };
    let Some(bucket) = buckets.masses.iter().position(holds_cut) else { return };
    kept.tokens.clear();
    let inside = |token: &u32| {
        let token = *token as usize;
        weights[token] > 0.0 && weighting.bucket(logits[token]) == bucket
    };
    kept.tokens.extend((0..logits.len() as u32).filter(inside));
    if let Some(last) = kept.last_reaching(view, before, goal) {
        let lowest = key(logits[last as usize]);
        isa.run(Mask { logits, lowest, last, weights });
    }
}

impl Weighting {
    /// The bucket of a logit. Does not increase with the logit.
    #[inline(always)]
    fn bucket(self, logit: f32) -> usize {
        // 0 * ∞ is NaN, which becomes bucket 0, as it should.
        let units = (self.highest - logit) * self.inverse_temperature * PER_UNIT;
        (units as u32).min(BUCKETS as u32 - 1) as usize
    }
}

/// Integer with the order of `f32::total_cmp`.
#[inline(always)]
fn key(logit: f32) -> i32 {
    let bits = logit.to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

struct Count<'a> {
    logits: &'a [f32],
    weights: &'a [f32],
    weighting: Weighting,
    masses: &'a mut [u64],
}

impl Kernel for Count<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (logit, weight) in self.logits.iter().zip(self.weights) {
            self.masses[self.weighting.bucket(*logit)] += mass(*weight);
        }
    }
}

/// Zeroes the weights of all tokens that rank after `last`, whose key is `lowest`.
struct Mask<'a> {
    logits: &'a [f32],
    lowest: i32,
    last: u32,
    weights: &'a mut [f32],
}

impl Kernel for Mask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (token, (weight, logit)) in self.weights.iter_mut().zip(self.logits).enumerate() {
            let key = key(*logit);
            let stays = (key > self.lowest) | ((key == self.lowest) & (token as u32 <= self.last));
            *weight = if stays { *weight } else { 0.0 };
        }
    }
}
