//! Quantises weights to the formats of this module: to the nearest code, with the scale that covers the
//! span's largest weight.

use super::super::super::{GivenRow, GivenRows, Layout, NotFinite, PackError, pack_rows};
use crate::cpu::Cpu;
use crate::cpu::matrix::WeightMatrix;

/// Largest finite FP8 number.
const FP8_MOST: f32 = 448.0;
/// Values of NF4 (arXiv 2305.14314), as in bitsandbytes.
#[allow(clippy::excessive_precision)] // as published
pub(super) const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

pub(super) fn four_bits(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    let scale_zero = |weights: &[f32]| {
        let lowest = weights.iter().fold(0f32, |lowest, weight| lowest.min(*weight));
        let highest = weights.iter().fold(0f32, |highest, weight| highest.max(*weight));
        let scale = (highest - lowest).min(f32::MAX) / 15.0;
        (scale, if scale > 0.0 { (-lowest / scale).round_ties_even() as u8 } else { 0 })
    };
    round(cpu, from, layout, to, scale_zero, |steps, zero| nearest(steps, zero, 15))
}

pub(super) fn eight_bits(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    round(
        cpu,
        from,
        layout,
        to,
        |weights| (largest(weights) / 127.0, 128),
        |steps, zero| nearest(steps, zero, 255),
    )
}

pub(super) fn fp8(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    round(cpu, from, layout, to, |weights| (largest(weights) / FP8_MOST, 0), |number, _| to_e4m3(number))
}

pub(super) fn table(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    let code = |number: f32, _| {
        let is_below = |pair: &[f32; 2]| number > (pair[0] + pair[1]) / 2.0;
        NF4.array_windows().filter(|pair| is_below(pair)).count() as u8
    };
    round(cpu, from, layout, to, |weights| (largest(weights), 0), code)
}

/// Nearest code from 0 to `most`.
fn nearest(steps: f32, zero: u8, most: u8) -> u8 {
    (steps.round_ties_even() + f32::from(zero)).clamp(0.0, f32::from(most)) as u8
}

fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()))
}

/// Code of the nearest FP8 number (E4M3 without infinities), ties to even; larger values saturate.
#[inline(always)]
pub fn to_e4m3(value: f32) -> u8 {
    let (size, sign) = (value.abs().min(FP8_MOST), if value.is_sign_negative() { 0x80 } else { 0 });
    if size < 2f32.powi(-6) {
        return sign | (size * 512.0).round_ties_even() as u8;
    }
    let bits = size.to_bits();
    let rounded = bits + 0x7ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)).min(0x7e) as u8
}

/// Packs `from`: `scale_zero` chooses the scale and zero point of a span, and `code` the code of a weight
/// divided by the scale.
fn round(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
    scale_zero: impl Fn(&[f32]) -> (f32, u8) + Sync,
    code: impl Fn(f32, u8) -> u8 + Sync,
) -> Result<(), PackError> {
    pack_rows(cpu, &Rounded { from, scale_zero, code }, layout, to)
}

struct Rounded<'a, Z, C> {
    from: &'a WeightMatrix,
    scale_zero: Z,
    code: C,
}

impl<Z: Fn(&[f32]) -> (f32, u8) + Sync, C: Fn(f32, u8) -> u8 + Sync> GivenRows for Rounded<'_, Z, C> {
    fn row(&self, row: usize, to: GivenRow<'_>) -> Result<(), PackError> {
        let mut weights = vec![0.0; self.from.cols()];
        self.from.widen_row(row, &mut weights);
        if let Some(col) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(NotFinite { row, col, value: weights[col] }.into());
        }
        let ends = to.starts.iter().skip(1).copied().chain([weights.len()]);
        for (i, (start, end)) in to.starts.iter().zip(ends).enumerate() {
            let (scale, zero) = (self.scale_zero)(&weights[*start..end]);
            to.scales[i] = scale;
            to.zeros.iter_mut().skip(i).take(1).for_each(|to| *to = zero);
            let per_unit = 1.0 / scale;
            let per_unit = if per_unit.is_finite() { per_unit } else { 0.0 };
            for (weight, to) in weights[*start..end].iter().zip(&mut to.codes[*start..end]) {
                *to = (self.code)(weight * per_unit, zero);
            }
        }
        Ok(())
    }

    fn table(&self) -> [f32; 16] {
        NF4
    }
}
