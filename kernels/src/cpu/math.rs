//! exp, tanh and erf of `f32` with the same bits on every machine: no C library, no branches, only operations
//! that are exact or correctly rounded. The polynomials of exp and tanh are those of Cephes (S. Moshier,
//! `expf`, `tanhf`), within 2 ulp; erf is the quotient of polynomials that Eigen uses. Logarithms are rare
//! and come from the Rust crate libm.

#![allow(clippy::excessive_precision)] // coefficients as published

// 1.5 * 2^23: adding it rounds a small value to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;
// ln 2 in two parts, the first exact in few bits.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^x. Zero below -87.3, at most e^88 above; NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = x.clamp(-87.3, 88.0); // a clamp keeps NaN
    let rounded = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 5e-1);
    p = p.mul_add(r * r, r) + 1.0;
    let scale = f32::from_bits((rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    let result = p * scale;
    if x < -87.3 { 0.0 } else { result }
}

/// tanh(x), within 2 ulp: Cephes' polynomial (`tanhf`) near zero, elsewhere 1 - 2 / (e^2x + 1).
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let mut p = -5.704_988_7e-3f32;
    p = p.mul_add(square, 2.063_908_9e-2);
    p = p.mul_add(square, -5.373_971_6e-2);
    p = p.mul_add(square, 1.333_144_2e-1);
    p = p.mul_add(square, -3.333_328_2e-1);
    let near = p.mul_add(square * x, x);
    let far = (1.0 - 2.0 / (exp(2.0 * size) + 1.0)).copysign(x);
    if size < 0.625 { near } else { far }
}

/// erf(x), within 4e-7: the odd quotient of polynomials of Eigen's `generic_fast_erf`, on the range outside
/// of which it is 1 in f32.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let x = x.clamp(-4.0, 4.0); // a clamp keeps NaN
    let square = x * x;
    let mut p = -2.726_142_258_013_06e-10f32;
    p = p.mul_add(square, 2.770_681_424_959_02e-8);
    p = p.mul_add(square, -2.101_024_020_825_08e-6);
    p = p.mul_add(square, -5.692_506_394_623_46e-5);
    p = p.mul_add(square, -7.349_906_303_268_55e-4);
    p = p.mul_add(square, -2.954_599_808_540_25e-3);
    p = p.mul_add(square, -1.609_603_332_624_15e-2);
    let mut q = -1.456_607_184_649_96e-5f32;
    q = q.mul_add(square, -2.133_740_552_789_05e-4);
    q = q.mul_add(square, -1.682_826_974_382_03e-3);
    q = q.mul_add(square, -7.373_329_167_204_68e-3);
    q = q.mul_add(square, -1.426_473_905_141_89e-2);
    x * p / q
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error in units in the last place of the exact result.
    fn ulps(got: f32, exact: f64) -> f64 {
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
        (f64::from(got) - exact).abs() / ulp.abs()
    }

    #[test]
    fn exp_is_within_two_ulp() {
        for i in -87_000..88_000 {
            let x = i as f32 * 1e-3;
            assert!(ulps(exp(x), f64::from(x).exp()) <= 2.0, "exp({x}) = {}", exp(x));
        }
        assert_eq!((exp(0.0), exp(-90.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f32::NAN).is_nan() && exp(f32::INFINITY) > 1e38);
    }

    #[test]
    fn erf_is_within_4e_7_odd_and_one_far_from_zero() {
        for i in 0..60_000 {
            let x = i as f32 * 1e-4;
            assert!((f64::from(erf(x)) - libm::erf(f64::from(x))).abs() < 4e-7, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!((erf(f32::INFINITY) - 1.0).abs() < 4e-7 && erf(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_two_ulp_odd_and_bounded() {
        for i in 1..100_000 {
            let x = i as f32 * 1e-4;
            assert!(ulps(tanh(x), f64::from(x).tanh()) <= 2.0, "tanh({x}) = {}", tanh(x));
            assert_eq!(tanh(-x), -tanh(x));
        }
        assert_eq!((tanh(0.0), tanh(1e-30), tanh(1e30), tanh(f32::NEG_INFINITY)), (0.0, 1e-30, 1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }
}
