//! FP8 e4m3 on the host: four bits of exponent, three of mantissa, no infinity (OCP 8-bit Floating Point
//! Specification, 2023). The reference for kernels; loading also uses it to convert scaled weights.

use crate::cuda::memory::E4m3;

/// The largest finite value.
pub const MAX: f32 = 448.0;

impl E4m3 {
    /// Rounds to nearest, ties to even; saturates at ±448; NaN stays NaN.
    pub fn from_f32(value: f32) -> Self {
        let sign = (value.to_bits() >> 24) as u8 & 0x80;
        let magnitude = value.abs();
        if magnitude.is_nan() {
            return Self(sign | 0x7f);
        }
        if magnitude >= MAX {
            return Self(sign | 0x7e);
        }
        // Below the smallest normal value, 2^-6, values are multiples of 2^-9; above it three bits of
        // mantissa are kept.
        if magnitude < 0.015_625 {
            return Self(sign | (magnitude * 512.0).round_ties_even() as u8);
        }
        let bits = magnitude.to_bits();
        let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
        Self(sign | (rounded - (120 << 3)) as u8)
    }

    /// Widens without rounding.
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (i32::from(self.0 >> 3 & 15), f32::from(self.0 & 7));
        let magnitude = match (exponent, self.0 & 7) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa / 512.0,
            _ => (1.0 + mantissa / 8.0) * f32::from_bits(((exponent - 7 + 127) as u32) << 23),
        };
        if self.0 & 0x80 == 0 { magnitude } else { -magnitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_and_other_values_round_to_the_nearest() {
        let codes: Vec<E4m3> = (0..=255).map(E4m3).filter(|code| !code.to_f32().is_nan()).collect();
        assert_eq!(codes.len(), 254);
        assert!(codes.iter().all(|code| E4m3::from_f32(code.to_f32()) == *code));
        let positive: Vec<f32> = (0..0x7f).map(|code| E4m3(code).to_f32()).collect();
        assert_eq!((positive[1], positive[0x7e]), (0.001_953_125, 448.0));
        for (low, pair) in positive.windows(2).enumerate() {
            let middle = (pair[0] + pair[1]) / 2.0;
            let even = if low % 2 == 0 { low } else { low + 1 } as u8;
            assert_eq!(E4m3::from_f32(middle), E4m3(even), "ties go to even: {middle}");
            assert_eq!(E4m3::from_f32(-middle * 0.9999), E4m3(low as u8 | 0x80));
            assert_eq!(E4m3::from_f32(middle * 1.0001), E4m3(low as u8 + 1));
        }
        assert_eq!((E4m3::from_f32(1e9), E4m3::from_f32(f32::NEG_INFINITY)), (E4m3(0x7e), E4m3(0xfe)));
        assert!(E4m3::from_f32(f32::NAN).to_f32().is_nan());
    }
}
