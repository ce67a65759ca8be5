//! Chooses the scales and zero points of quantisation.
//!
//! Quantisation error costs quality, so 4-bit formats search: of all candidates they take the one with the
//! least squared error. If scales are not limited to a grid, the best scale for given codes is that of least
//! squares.

#![allow(clippy::needless_range_loop)] // lanes and columns index several arrays

use super::super::input::GROUP;
use super::super::simd::LANES;

/// One value per output.
pub(super) type Lanes = [f32; LANES];
/// A group's weights, `[columns][outputs]`.
pub(super) type Weights = [Lanes; GROUP];

/// Candidate scales divide the range of the weights into `SMALLEST_RANGE`, plus multiples of `RANGE_STEP`,
/// steps.
const RANGES: usize = 10;
const SMALLEST_RANGE: f32 = 13.8;
const RANGE_STEP: f32 = 0.35;

/// The largest magnitude.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut highest = 0u32; // magnitudes sort like their bits
    for value in values {
        highest = highest.max(value.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(highest)
}

/// Rounds to half precision, clamping to its range.
#[inline(always)]
fn in_half(scale: f32) -> f32 {
    let most = half::f16::MAX.to_f32_const();
    half::f16::from_f32(scale.clamp(-most, most)).to_f32()
}

/// Scales of 8-bit codes: the weight with the largest magnitude gets code 127 or -127.
#[inline(always)]
pub(super) fn eight_bits(weights: &Weights) -> Lanes {
    let mut scale = extreme(weights);
    for lane in 0..LANES {
        scale[lane] = in_half(scale[lane].abs() / 127.0);
    }
    scale
}

/// The weight with the largest magnitude of each output.
#[inline(always)]
fn extreme(weights: &Weights) -> Lanes {
    let mut extreme = [0f32; LANES];
    for col in 0..GROUP {
        for lane in 0..LANES {
            let weight = weights[col][lane];
            extreme[lane] = if weight.abs() > extreme[lane].abs() { weight } else { extreme[lane] };
        }
    }
    extreme
}

/// The best fit so far: scale, zero point, and how much of the weights' sum of squares they explain.
struct Fit {
    scale: Lanes,
    zero: Lanes,
    explained: Lanes,
}

impl Fit {
    /// Tries codes from `-zero` to `15 - zero` with the scale `1 / per_unit`.
    #[inline(always)]
    fn consider(&mut self, weights: &Weights, per_unit: &Lanes, zero: &Lanes) {
        let (mut products, mut squares) = ([0f32; LANES], [0f32; LANES]);
        for col in 0..GROUP {
            for lane in 0..LANES {
                let weight = weights[col][lane];
                let steps = (weight * per_unit[lane]).round_ties_even();
                let code = steps.max(-zero[lane]).min(15.0 - zero[lane]);
                products[lane] += weight * code;
                squares[lane] += code * code;
            }
        }
        for lane in 0..LANES {
            // With the scale `products / squares` the squared error is `sum of weight^2 - explained`.
            let scale = products[lane] / squares[lane];
            let explained = scale * products[lane];
            // Both comparisons are false for NaN: if all codes are zero, or if sums overflow.
            let better = explained > self.explained[lane] && explained < f32::INFINITY;
            self.scale[lane] = if better { scale } else { self.scale[lane] };
            self.zero[lane] = if better { zero[lane] } else { self.zero[lane] };
            self.explained[lane] = if better { explained } else { self.explained[lane] };
        }
    }

    /// Scale, rounded to half precision, and zero point.
    #[inline(always)]
    fn rounded(mut self) -> (Lanes, Lanes) {
        for lane in 0..LANES {
            self.scale[lane] = in_half(self.scale[lane]);
        }
        (self.scale, self.zero)
    }
}

/// Lowest and highest weight of each output, with zero included so that a zero point lies within.
#[inline(always)]
fn range(weights: &Weights) -> (Lanes, Lanes) {
    let (mut lowest, mut highest) = ([0f32; LANES], [0f32; LANES]);
    for col in 0..GROUP {
        for lane in 0..LANES {
            lowest[lane] = lowest[lane].min(weights[col][lane]);
            highest[lane] = highest[lane].max(weights[col][lane]);
        }
    }
    (lowest, highest)
}

/// Chooses the steps that expand a group's 4-bit codes to 8 bits. `weights` are in units of the output's
/// scale. Of a few multipliers and zero points, takes the pair with the least squared error; also returns the
/// 4-bit codes.
#[inline(always)]
pub(super) fn steps(weights: &Weights) -> (Steps, [[u32; LANES]; GROUP]) {
    let (lowest, highest) = range(weights);
    let (mut multiplier, mut zero) = ([0f32; LANES], [0f32; LANES]);
    for lane in 0..LANES {
        let range = highest[lane] - lowest[lane];
        multiplier[lane] = (range / 15.0).round_ties_even();
        let at = (-lowest[lane] / range * 15.0).round_ties_even();
        zero[lane] = if at > 0.0 { at.min(15.0) } else { 0.0 }; // 0 if NaN
    }
    let mut best = Steps { multiplier: [1.0; LANES], zero: [0.0; LANES] };
    let mut least = [f32::INFINITY; LANES];
    for larger in [0.0, -1.0, 1.0] {
        for shift in [0.0, -1.0, 1.0] {
            let mut tried = Steps { multiplier, zero };
            for lane in 0..LANES {
                tried.multiplier[lane] = (multiplier[lane] + larger).clamp(1.0, 15.0);
                tried.zero[lane] = (zero[lane] + shift).clamp(0.0, 15.0);
            }
            let (bounds, mut error) = (Bounds::of(&tried), [0f32; LANES]);
            for col in 0..GROUP {
                for lane in 0..LANES {
                    let code = bounds.code(weights[col][lane], lane);
                    let off = weights[col][lane] - code * tried.multiplier[lane];
                    error[lane] += off * off;
                }
            }
            for lane in 0..LANES {
                let better = error[lane] < least[lane];
                least[lane] = if better { error[lane] } else { least[lane] };
                best.multiplier[lane] = if better { tried.multiplier[lane] } else { best.multiplier[lane] };
                best.zero[lane] = if better { tried.zero[lane] } else { best.zero[lane] };
            }
        }
    }
    let (bounds, mut codes) = (Bounds::of(&best), [[0; LANES]; GROUP]);
    for col in 0..GROUP {
        for lane in 0..LANES {
            codes[col][lane] = (bounds.code(weights[col][lane], lane) + best.zero[lane]) as u32;
        }
    }
    (best, codes)
}

/// Multipliers from 1 to 15 and zero points from 0 to 15.
pub(super) struct Steps {
    pub(super) multiplier: Lanes,
    pub(super) zero: Lanes,
}

/// Range of codes minus zero point in which codes fit 4 bits, and 8 bits when multiplied.
struct Bounds {
    per_unit: Lanes,
    lowest: Lanes,
    highest: Lanes,
}

impl Bounds {
    #[inline(always)]
    fn of(steps: &Steps) -> Self {
        let mut bounds = Self { per_unit: [0.0; LANES], lowest: [0.0; LANES], highest: [0.0; LANES] };
        for lane in 0..LANES {
            let most = (127.0 / steps.multiplier[lane]).floor();
            bounds.per_unit[lane] = 1.0 / steps.multiplier[lane];
            bounds.lowest[lane] = (-most).max(-steps.zero[lane]);
            bounds.highest[lane] = most.min(15.0 - steps.zero[lane]);
        }
        bounds
    }

    /// The nearest code minus its zero point.
    #[inline(always)]
    fn code(&self, weight: f32, lane: usize) -> f32 {
        (weight * self.per_unit[lane]).round_ties_even().max(self.lowest[lane]).min(self.highest[lane])
    }
}

/// Scales and zero points of 4-bit codes: the range of the weights, zero included, is about 15 steps, and its
/// ends may be clipped.
#[inline(always)]
pub(super) fn four_bits_zero(weights: &Weights) -> (Lanes, Lanes) {
    let (lowest, highest) = range(weights);
    let (mut range, mut zero) = ([0f32; LANES], [0f32; LANES]);
    for lane in 0..LANES {
        range[lane] = (highest[lane] - lowest[lane]).min(f32::MAX);
        let at = (-lowest[lane] / range[lane] * 15.0).round_ties_even();
        zero[lane] = if at > 0.0 { at.min(15.0) } else { 0.0 }; // 0 if NaN
    }
    let mut fit = Fit { scale: range, zero, explained: [0.0; LANES] };
    for lane in 0..LANES {
        fit.scale[lane] /= 15.0;
    }
    for shift in [0.0, -1.0, 1.0] {
        let mut shifted = zero;
        for lane in 0..LANES {
            shifted[lane] = (zero[lane] + shift).clamp(0.0, 15.0);
        }
        for candidate in 0..RANGES {
            let steps = SMALLEST_RANGE + candidate as f32 * RANGE_STEP;
            let mut per_unit = [0.0; LANES];
            for lane in 0..LANES {
                per_unit[lane] = steps / range[lane];
            }
            fit.consider(weights, &per_unit, &shifted);
        }
    }
    fit.rounded()
}
