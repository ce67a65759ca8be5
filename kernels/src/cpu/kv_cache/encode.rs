//! Rounding to the cache's number types. All roundings are to nearest, ties to even.

use super::super::packed::to_e4m3;

/// Smaller magnitudes become zero if bfloat16 is multiplied in pairs. Products of two remaining numbers, and
/// sums of such products, are multiples of 2^-124 (twice eight significant bits). So none is subnormal; the
/// instruction that multiplies pairs would take a subnormal for zero.
pub(in super::super) const SMALLEST_IN_PAIRS: f32 = f32::from_bits((127 - 55) << 23);

/// Largest 8-bit code.
pub(super) const INT8_MOST: f32 = 127.0;
/// Largest FP8 number.
pub(super) const FP8_MOST: f32 = 448.0;

/// Bits of the nearest bfloat16; magnitudes below 2^-55 become zero.
#[inline(always)]
pub(in super::super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let rounded = if value.is_nan() { bits >> 16 | 0x40 } else { rounded };
    (if value.abs() < SMALLEST_IN_PAIRS { 0 } else { rounded }) as u16
}

/// Bits of the nearest IEEE half. Finite values outside its range become its largest magnitude.
#[inline(always)]
pub(super) fn to_f16(value: f32) -> u16 {
    const LARGEST: f32 = 65504.0;
    // Below this, halves are multiples of 2^-24, like f32 from 0.5 to 1.
    const SMALLEST_NORMAL: f32 = f32::from_bits((127 - 14) << 23);
    let sign = (value.to_bits() >> 16) & 0x8000;
    let magnitude = value.abs();
    let limited = if magnitude > LARGEST { LARGEST } else { magnitude };
    let bits = limited.to_bits();
    let normal = (bits.wrapping_add(0xfff + (bits >> 13 & 1)) >> 13).wrapping_sub((127 - 15) << 10);
    let tiny = (limited + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if limited < SMALLEST_NORMAL { tiny } else { normal };
    let whole = if magnitude == f32::INFINITY { 0x7c00 } else { finite };
    (sign | if value.is_nan() { 0x7e00 } else { whole }) as u16
}

/// Returns a row's scale, `max|value| / most`, and the inverse of the scale. Codes stand for `value / scale`,
/// from `-most` to `most`. If a value is NaN or infinite, so is the scale, which makes results computed from
/// the row NaN.
#[inline(always)]
pub(super) fn row_scale(values: &[f32], most: f32) -> (f32, f32) {
    // Non-negative floats sort like their bits, NaN highest.
    let highest = values.iter().fold(0u32, |highest, value| highest.max(value.to_bits() & 0x7fff_ffff));
    let highest = f32::from_bits(highest);
    let per_unit = if highest > 0.0 && highest.is_finite() { most / highest } else { 0.0 };
    (highest / most, per_unit)
}

/// The code of a value, given the inverse of its row's scale.
#[inline(always)]
pub(super) fn to_int8(value: f32, per_unit: f32) -> u8 {
    // If the scale is so small that its inverse overflows, codes would be out of range.
    (value * per_unit).clamp(-INT8_MOST, INT8_MOST).round_ties_even() as i8 as u8
}

/// The same for FP8.
#[inline(always)]
pub(super) fn to_fp8(value: f32, per_unit: f32) -> u8 {
    // Zero times an inverse that overflows would be NaN.
    if value == 0.0 { 0 } else { to_e4m3(value * per_unit) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::e4m3_in_256ths;
    use half::{bf16, f16};

    /// Every 16-bit pattern with its neighbours in f32 and the values around the midpoint to the next.
    fn interesting() -> impl Iterator<Item = f32> {
        (0..=u16::MAX).flat_map(|half| {
            let (wide, narrow) = (u32::from(half) << 16, f16::from_bits(half).to_f32().to_bits());
            let around = |bits: u32| {
                [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001].map(|more| bits.wrapping_add(more))
            };
            around(wide).into_iter().chain(around(narrow)).map(f32::from_bits)
        })
    }

    #[test]
    fn halves_are_rounded_as_the_half_crate_does() {
        for value in interesting() {
            let (b, h) = (bf16::from_bits(to_bf16(value)), f16::from_bits(to_f16(value)));
            if value.is_nan() {
                assert!(b.is_nan() && h.is_nan());
                continue;
            }
            let expected = if value.abs() < SMALLEST_IN_PAIRS { bf16::ZERO } else { bf16::from_f32(value) };
            assert_eq!(b.to_bits(), expected.to_bits(), "{value}");
            let expected = f16::from_f32(value);
            let limited = if value.is_finite() && expected.is_infinite() {
                f16::MAX.to_f32().copysign(value)
            } else {
                expected.to_f32()
            };
            assert_eq!(h.to_f32().to_bits(), limited.to_bits(), "{value}");
        }
    }

    #[test]
    fn codes_are_close_to_their_values() {
        for highest in [1e-30f32, 0.3, 127.0, 1e30] {
            let values: Vec<f32> = (0..=100).map(|i| (i as f32 * 0.02 - 1.0) * highest).collect();
            let (scale, per_unit) = row_scale(&values, INT8_MOST);
            for value in &values {
                let code = f32::from(to_int8(*value, per_unit) as i8);
                assert!((code * scale - value).abs() <= 0.501 * scale, "{value}: {code} times {scale}");
            }
            let (scale, per_unit) = row_scale(&values, FP8_MOST);
            for value in values {
                let number = e4m3_in_256ths(to_fp8(value, per_unit)) * 256.0;
                let off = (number * scale - value).abs();
                // Half of the last of four significant bits, or of the smallest number.
                assert!(off <= value.abs() * 0.0626 + scale / 1024.0, "{value}: {number} times {scale}");
            }
        }
        assert_eq!(row_scale(&[0.0, -0.0], INT8_MOST), (0.0, 0.0));
        assert!(row_scale(&[1.0, f32::NAN], FP8_MOST).0.is_nan());
        assert!(row_scale(&[1.0, f32::INFINITY], FP8_MOST).0.is_infinite());
        assert_eq!([to_fp8(0.0, f32::INFINITY), to_fp8(1e-40, f32::INFINITY)], [0, 0x7e]);
    }
}
