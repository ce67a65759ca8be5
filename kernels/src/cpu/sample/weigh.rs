//! Weights of tokens: probabilities relative to the most probable token.

use super::super::math::exp;
use super::super::simd::{Kernel, Simd};

/// Parameters of the conversion from logits to weights.
#[derive(Clone, Copy)]
pub(super) struct Weighting {
    /// The highest logit.
    pub(super) highest: f32,
    /// 1 / temperature.
    pub(super) inverse_temperature: f32,
    /// Smaller weights become zero.
    pub(super) min_weight: f32,
}

impl Weighting {
    #[inline(always)]
    pub(super) fn weight(self, logit: f32) -> f32 {
        let weight = self.uncut(logit);
        if weight < self.min_weight { 0.0 } else { weight }
    }

    #[inline(always)]
    fn uncut(self, logit: f32) -> f32 {
        // Subtract first: a tiny temperature must not turn the highest logit into ∞. Equal logits have weight
        // 1, but 0 * ∞ would be NaN.
        let below = logit - self.highest;
        if below == 0.0 { 1.0 } else { exp(below * self.inverse_temperature) }
    }

    /// Whether all logits below `logit` have weight zero. Where `exp` becomes zero it is monotone; the last
    /// bits of its other values need not be.
    pub(super) fn is_out(self, logit: f32) -> bool {
        let weight = self.uncut(logit);
        weight == 0.0 || weight < self.min_weight * 0.9999
    }
}

/// Writes the weights of `logits` to `out`.
pub(super) struct WeighAll<'a> {
    pub(super) logits: &'a [f32],
    pub(super) weighting: Weighting,
    pub(super) out: &'a mut [f32],
}

impl Kernel for WeighAll<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (out, logit) in self.out.iter_mut().zip(self.logits) {
            *out = self.weighting.weight(*logit);
        }
    }
}

/// Replaces logits by their weights, the same as [`WeighAll`] computes.
pub(super) struct Weigh<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) weighting: Weighting,
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for value in self.values.iter_mut() {
            *value = self.weighting.weight(*value);
        }
    }
}

/// A weight (at most 1) in units of 2^-44, ties to even. The sum of 2^19 tokens of weight 1 still fits. The
/// product is exact, so the addition that turns it into an integer rounds only once.
#[inline(always)]
pub(super) fn mass(weight: f32) -> u64 {
    const ROUND: f64 = 4_503_599_627_370_496.0; // 2^52: f64 from here on are integers
    (f64::from(weight) * 17_592_186_044_416.0 + ROUND).to_bits() - ROUND.to_bits()
}

/// Sum of the masses of all weights.
pub(super) struct Mass<'a>(pub(super) &'a [f32]);

impl Kernel for Mass<'_> {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> u64 {
        self.0.iter().fold(0u64, |sum, weight| sum.wrapping_add(mass(*weight)))
    }
}
