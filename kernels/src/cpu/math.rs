//! exp and ln of `f32`, the same bits on every machine: no C library, no branches, only operations that are exact or
//! correctly rounded. Polynomials are those of Cephes (S. Moshier, `expf` and `logf`), within 2 ulp.

#![allow(clippy::excessive_precision)] // coefficients as published

// The magic number 1.5 * 2^23: adding it rounds a small value to an integer, held in the low bits.
const ROUND: f32 = 12_582_912.0;
// ln 2 in two parts, the first exact in a few bits.
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

/// Natural logarithm of a positive, normal `x`; other values give something unspecified.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
    let shifted = x.to_bits().wrapping_sub(0x3f35_04f3);
    let e = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let mut p = 7.037_683_6e-2f32;
    p = p.mul_add(m, -1.151_461e-1);
    p = p.mul_add(m, 1.167_699_9e-1);
    p = p.mul_add(m, -1.242_014_1e-1);
    p = p.mul_add(m, 1.424_932_3e-1);
    p = p.mul_add(m, -1.666_805_8e-1);
    p = p.mul_add(m, 2.000_071_5e-1);
    p = p.mul_add(m, -2.499_999_4e-1);
    p = p.mul_add(m, 3.333_333_1e-1);
    let square = m * m;
    let tail = (p * m).mul_add(square, e.mul_add(LN2_LOW, square * -0.5));
    e.mul_add(LN2_HIGH, m + tail)
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
    fn ln_is_within_two_ulp_or_a_tiny_step_near_one() {
        for i in 1..200_000u32 {
            let x = f32::from_bits(0x0080_0000 + i * 10_000); // all normal exponents
            let exact = f64::from(x).ln();
            assert!(
                ulps(ln(x), exact) <= 2.0 || (f64::from(ln(x)) - exact).abs() < 1e-7,
                "ln({x}) = {}",
                ln(x)
            );
        }
        assert_eq!(ln(1.0), 0.0);
    }
}
