//! Layer normalisation (Ba et al. 2016): subtracts a row's mean before scaling.

use super::disjoint::DisjointMut;
use super::input::{Encoding, Input};
use super::norm::load_up_to;
use super::simd::{Kernel, LANES, Simd};
use super::{Cpu, for_each_row};

/// Parameters of a layer normalisation.
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm<'a> {
    /// Factors of the normalised values, `[width]`.
    pub weight: &'a [f32],
    /// Bias, `[width]`, added last.
    pub bias: Option<&'a [f32]>,
    /// Added to the variance.
    pub eps: f32,
}

/// `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`, row by row, encoded as the input of a product.
///
/// # Panics
/// If `x` is not `[rows, width]`, or the bias has a different width.
pub fn layer_norm_into(cpu: &mut Cpu, x: &[f32], norm: LayerNorm<'_>, encoding: Encoding, out: &mut Input) {
    let (width, isa) = (norm.weight.len(), cpu.isa);
    assert!(x.len().is_multiple_of(width), "x is [rows, width]");
    assert!(norm.bias.is_none_or(|bias| bias.len() == width), "a bias for each weight");
    out.fill(cpu, encoding, x.len() / width, width, |row, out| {
        isa.run(Row { x: &x[row * width..][..width], norm, out });
    });
}

/// [`layer_norm_into`] in place.
///
/// # Panics
/// If `x` is not `[rows, width]`, or the bias has a different width.
pub fn layer_norm(cpu: &mut Cpu, x: &mut [f32], norm: LayerNorm<'_>) {
    let (width, isa) = (norm.weight.len(), cpu.isa);
    assert!(x.len().is_multiple_of(width), "x is [rows, width]");
    assert!(norm.bias.is_none_or(|bias| bias.len() == width), "a bias for each weight");
    let (rows, x) = (x.len() / width, DisjointMut::new(x));
    for_each_row(cpu, rows, |row| {
        // SAFETY: each row is in one task.
        isa.run(InPlace { x: unsafe { x.part(row * width, width) }, norm });
    });
}

struct Row<'a> {
    x: &'a [f32],
    norm: LayerNorm<'a>,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, norm, out } = self;
        let mean = sum(s, x) / x.len() as f32;
        for (out, x) in out.iter_mut().zip(x) {
            *out = x - mean;
        }
        norm.scale(s, out);
    }
}

struct InPlace<'a> {
    x: &'a mut [f32],
    norm: LayerNorm<'a>,
}

impl Kernel for InPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, norm } = self;
        let mean = sum(s, x) / x.len() as f32;
        x.iter_mut().for_each(|x| *x -= mean);
        norm.scale(s, x);
    }
}

impl LayerNorm<'_> {
    /// Divides a row of mean 0 by its deviation, and applies weights and biases.
    #[inline(always)]
    fn scale<S: Simd>(self, s: S, row: &mut [f32]) {
        let Self { weight, bias, eps } = self;
        let scale = 1.0 / (sum_of_squares(s, row) / row.len() as f32 + eps).sqrt();
        match bias {
            None => row.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight),
            Some(bias) => {
                for ((x, weight), bias) in row.iter_mut().zip(weight).zip(bias) {
                    *x = *x * scale * weight + bias;
                }
            }
        }
    }
}

/// Sum of `x`: first columns sixteen apart, ascending, then the lanes.
#[inline(always)]
fn sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = s.zero();
    for at in (0..x.len()).step_by(LANES) {
        sums = s.add(sums, load_up_to(s, &x[at..]));
    }
    s.sum(sums)
}

/// Sum of squares in the same order.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = s.zero();
    for at in (0..x.len()).step_by(LANES) {
        let x = load_up_to(s, &x[at..]);
        sums = s.fma(x, x, sums);
    }
    s.sum(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::rows::Rows;
    use crate::cpu::simd::Isa;

    #[test]
    fn it_agrees_with_f64_on_every_instruction_set() {
        for width in [1, 15, 16, 100, 896] {
            let rows = 7;
            // A mean far from zero, so that failing to subtract it is detected.
            let x: Vec<f32> =
                (0..rows * width).map(|i| 5.0 + ((i * 37 % 101) as f32 - 50.0) * 0.07).collect();
            let weight: Vec<f32> = (0..width).map(|i| 0.5 + (i % 7) as f32 / 7.0).collect();
            let bias: Vec<f32> = (0..width).map(|i| (i % 5) as f32 - 2.0).collect();
            for bias in [None, Some(&bias[..])] {
                let norm = LayerNorm { weight: &weight, bias, eps: 1e-5 };
                let mut first = Vec::new();
                for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                    let mut out = Input::default();
                    layer_norm_into(&mut Cpu::with_isa(threads, isa), &x, norm, Encoding::F32, &mut out);
                    let Rows { values: got, stride } = out.values();
                    for (row, got) in x.chunks(width).zip(got.chunks(stride)) {
                        check(row, norm, got);
                    }
                    let mut in_place = x.clone();
                    layer_norm(&mut Cpu::with_isa(threads, isa), &mut in_place, norm);
                    let rows = in_place.chunks(width).zip(got.chunks(stride));
                    assert!(rows.into_iter().all(|(in_place, got)| in_place == &got[..width]));
                    let bits: Vec<u32> = got.iter().map(|value| value.to_bits()).collect();
                    assert!(first.is_empty() || first == bits, "{threads} threads on {}", isa.name());
                    first = bits;
                }
            }
        }
    }

    fn check(row: &[f32], norm: LayerNorm<'_>, got: &[f32]) {
        let width = row.len() as f64;
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / width;
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / width;
        for i in 0..row.len() {
            let bias = norm.bias.map_or(0.0, |bias| f64::from(bias[i]));
            let scaled =
                (f64::from(row[i]) - mean) / (variance + 1e-5).sqrt() * f64::from(norm.weight[i]) + bias;
            // With one column the variance is zero, and eps magnifies the rounding of the mean.
            let tolerance = if row.len() == 1 { 1e-3 } else { 1e-5 };
            assert!((f64::from(got[i]) - scaled).abs() < tolerance, "width {width}: {} for {scaled}", got[i]);
        }
    }
}
