//! Functions of gates, with the same bits on every machine.

use super::super::math::exp;

#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + e^x)`, within 3e-7 of its size.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    // ln(1 + u) is 2 * artanh(u / (2 + u)), whose argument is at most 1/3: the series of artanh converges
    // quickly.
    let u = exp(-x.abs());
    let ratio = u / (2.0 + u);
    let square = ratio * ratio;
    let mut p = 1.0 / 15.0;
    for n in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        p = square.mul_add(p, 1.0 / n);
    }
    let rest = 2.0 * ratio * square.mul_add(p, 1.0);
    // A comparison keeps NaN, unlike `max`.
    if x > 0.0 { x + rest } else { rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_agrees_with_f64() {
        for i in -86_000..100_000 {
            let x = i as f32 * 1e-3;
            let exact = f64::from(x).exp().ln_1p();
            assert!((f64::from(softplus(x)) - exact).abs() <= 3e-7 * exact, "softplus({x})");
        }
        assert_eq!((softplus(-1e3), softplus(1e30), softplus(f32::INFINITY)), (0.0, 1e30, f32::INFINITY));
        assert!(softplus(f32::NAN).is_nan());
    }
}
