//! From logits to weights: probabilities relative to the most probable token's.

use super::super::math::exp;
use super::super::simd::{Kernel, Simd};

/// How logits become weights.
#[derive(Clone, Copy)]
pub(super) struct Heat {
    /// The highest logit.
    pub(super) highest: f32,
    /// 1 / temperature.
    pub(super) per_degree: f32,
    /// Weights below this are zero.
    pub(super) least: f32,
}

impl Heat {
    #[inline(always)]
    pub(super) fn weight(self, logit: f32) -> f32 {
        let weight = self.uncut(logit);
        if weight < self.least { 0.0 } else { weight }
    }

    #[inline(always)]
    fn uncut(self, logit: f32) -> f32 {
        // The difference first: a tiny temperature must not turn the highest logit into ∞. And for equal logits
        // 0 * ∞ would be NaN, where the weight is 1.
        let below = logit - self.highest;
        if below == 0.0 { 1.0 } else { exp(below * self.per_degree) }
    }

    /// Whether all logits below `logit` have weight zero. Zeros of `exp` are monotone; its other values need not be, in
    /// their last bits.
    pub(super) fn is_out(self, logit: f32) -> bool {
        let weight = self.uncut(logit);
        weight == 0.0 || weight < self.least * 0.9999
    }
}

/// Weighs all `logits`.
pub(super) struct WeighAll<'a> {
    pub(super) logits: &'a [f32],
    pub(super) heat: Heat,
    pub(super) out: &'a mut [f32],
}

impl Kernel for WeighAll<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (out, logit) in self.out.iter_mut().zip(self.logits) {
            *out = self.heat.weight(*logit);
        }
    }
}

/// Turns some logits into their weights, the same ones.
pub(super) struct Weigh<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) heat: Heat,
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for value in self.values.iter_mut() {
            *value = self.heat.weight(*value);
        }
    }
}

/// A weight, at most 1, in units of 2^-44, ties to even; 2^19 tokens of weight 1 still fit their sum. The product is
/// exact, and so is the sum of integers that rounds it.
#[inline(always)]
pub(super) fn mass(weight: f32) -> u64 {
    const ROUND: f64 = 4_503_599_627_370_496.0; // 2^52: numbers from there on are whole
    (f64::from(weight) * 17_592_186_044_416.0 + ROUND).to_bits() - ROUND.to_bits()
}

/// Mass of all weights together.
pub(super) struct Mass<'a>(pub(super) &'a [f32]);

impl Kernel for Mass<'_> {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> u64 {
        self.0.iter().fold(0u64, |sum, weight| sum.wrapping_add(mass(*weight)))
    }
}
