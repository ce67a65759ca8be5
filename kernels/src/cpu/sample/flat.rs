//! Top-p over a flat distribution: thousands of tokens stay. Tokens are counted into buckets by their logit, and only the
//! bucket in which the cut falls is sorted.

use super::super::simd::{Kernel, Simd};
use super::cut::{Kept, Looked};
use super::weigh::{Heat, mass};

/// Buckets, each `1 / PER_UNIT` of a logit wide at temperature 1. What lies below the last one has no mass: a weight of
/// `e^-32` is less than half of 2^-44.
const BUCKETS: usize = 2048;
const PER_UNIT: f32 = 64.0;

/// Mass by bucket; memory that is kept between draws.
#[derive(Default)]
pub(super) struct Buckets {
    masses: Vec<u64>,
}

/// Zeroes the weights of all tokens but the best that weigh `goal` together. `weights` are those of all tokens, and weigh
/// that much.
pub(super) fn cut(
    looked: Looked<'_>,
    weights: &mut [f32],
    goal: f64,
    buckets: &mut Buckets,
    kept: &mut Kept,
) {
    let Looked { isa, logits, heat } = looked;
    buckets.masses.clear();
    buckets.masses.resize(BUCKETS, 0);
    isa.run(Count { logits, weights, heat, masses: &mut buckets.masses });
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
        weights[token] > 0.0 && heat.bucket(logits[token]) == bucket
    };
    kept.tokens.extend((0..logits.len() as u32).filter(inside));
    if let Some(last) = kept.last_reaching(looked, before, goal) {
        let lowest = key(logits[last as usize]);
        isa.run(Mask { logits, lowest, last, weights });
    }
}

impl Heat {
    /// The bucket of a logit: never a higher one for a higher logit.
    #[inline(always)]
    fn bucket(self, logit: f32) -> usize {
        // No number for 0 * ∞, which becomes bucket 0, rightly.
        let units = (self.highest - logit) * self.per_degree * PER_UNIT;
        (units as u32).min(BUCKETS as u32 - 1) as usize
    }
}

/// Orders as `f32::total_cmp` does.
#[inline(always)]
fn key(logit: f32) -> i32 {
    let bits = logit.to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

struct Count<'a> {
    logits: &'a [f32],
    weights: &'a [f32],
    heat: Heat,
    masses: &'a mut [u64],
}

impl Kernel for Count<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (logit, weight) in self.logits.iter().zip(self.weights) {
            self.masses[self.heat.bucket(*logit)] += mass(*weight);
        }
    }
}

/// Zeroes the weights of tokens behind `last`.
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
