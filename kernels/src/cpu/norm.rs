//! RMS normalisation (Zhang & Sennrich 2019) as in Llama.

use std::ops::Range;

use super::disjoint::DisjointMut;
use super::input::{Encoding, Input};
use super::rows::Rows;
use super::simd::{Kernel, LANES, Simd};
use super::{Cpu, for_each_row};

/// `out = x / sqrt(mean(x²) + eps) * weight`, row by row; `x` and `out` are `[rows, weight.len()]`.
///
/// # Panics
/// If the shapes disagree.
pub fn rms_norm(cpu: &mut Cpu, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(width), "x and out are [rows, width]");
    let (rows, isa, out) = (x.len() / width, cpu.isa, DisjointMut::new(out));
    for_each_row(cpu, rows, |row| {
        // SAFETY: each row is in one task.
        let out = unsafe { out.part(row * width, width) };
        isa.run(Row { x: &x[row * width..][..width], weight, eps, out });
    });
}

/// [`rms_norm`], encoded as the input of a product.
///
/// # Panics
/// If `x` is not `[rows, weight.len()]`.
pub fn rms_norm_into(
    cpu: &mut Cpu,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    encoding: Encoding,
    out: &mut Input,
) {
    let (width, isa) = (weight.len(), cpu.isa);
    assert!(x.len().is_multiple_of(width), "x is [rows, width]");
    out.fill(cpu, encoding, x.len() / width, width, |row, out| {
        isa.run(Row { x: &x[row * width..][..width], weight, eps, out });
    });
}

/// [`rms_norm_into`] of a part of each row of `x`, which starts at `first`.
///
/// # Panics
/// If the shapes disagree.
pub fn rms_norm_part_into(
    cpu: &mut Cpu,
    x: Rows<'_>,
    first: usize,
    weight: &[f32],
    eps: f32,
    encoding: Encoding,
    out: &mut Input,
) {
    let (width, isa, Rows { values: x, stride }) = (weight.len(), cpu.isa, x);
    assert!(x.len().is_multiple_of(stride) && first + width <= stride, "x is [rows, stride]");
    out.fill(cpu, encoding, x.len() / stride, width, |row, out| {
        isa.run(Row { x: &x[row * stride + first..][..width], weight, eps, out });
    });
}

/// Adds [`rms_norm`] of `x` to `residual`, row by row, for models that normalise a layer's output.
///
/// # Panics
/// If the shapes disagree.
pub fn rms_norm_add(cpu: &mut Cpu, x: &[f32], weight: &[f32], eps: f32, residual: &mut [f32]) {
    let width = weight.len();
    assert!(x.len() == residual.len() && x.len().is_multiple_of(width), "x and residual are [rows, width]");
    let (rows, isa, residual) = (x.len() / width, cpu.isa, DisjointMut::new(residual));
    for_each_row(cpu, rows, |row| {
        // SAFETY: each row is in one task.
        let residual = unsafe { residual.part(row * width, width) };
        isa.run(AddRow { x: &x[row * width..][..width], weight, eps, residual });
    });
}

/// Normalises the given heads of each row in place. `x` is `[rows, stride]`, and head `h` starts at `h *
/// weight.len()` of its row.
///
/// # Panics
/// If the shapes disagree.
pub fn rms_norm_heads(
    cpu: &mut Cpu,
    x: &mut [f32],
    stride: usize,
    heads: Range<usize>,
    weight: &[f32],
    eps: f32,
) {
    let width = weight.len();
    assert!(x.len().is_multiple_of(stride) && heads.end * width <= stride, "x is [rows, stride] of heads");
    let (rows, isa, x) = (x.len() / stride, cpu.isa, DisjointMut::new(x));
    for_each_row(cpu, rows, |row| {
        for head in heads.clone() {
            // SAFETY: each row is in one task, and a head is borrowed once at a time.
            isa.run(RowInPlace { x: unsafe { x.part(row * stride + head * width, width) }, weight, eps });
        }
    });
}

struct Row<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = per_rms(s, self.x, self.eps);
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * scale * weight;
        }
    }
}

struct RowInPlace<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RowInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = per_rms(s, self.x, self.eps);
        self.x.iter_mut().zip(self.weight).for_each(|(x, weight)| *x = *x * scale * weight);
    }
}

struct AddRow<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    residual: &'a mut [f32],
}

impl Kernel for AddRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = per_rms(s, self.x, self.eps);
        for ((residual, x), weight) in self.residual.iter_mut().zip(self.x).zip(self.weight) {
            *residual += x * scale * weight;
        }
    }
}

/// `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
pub(super) fn per_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let width = x.len();
    let mut squares = s.zero();
    let mut at = 0;
    while at < width {
        let x = load_up_to(s, &x[at..]);
        squares = s.fma(x, x, squares);
        at += LANES;
    }
    1.0 / (s.sum(squares) / width as f32 + eps).sqrt()
}

/// The first sixteen values, padded with zeros if there are fewer.
#[inline(always)]
pub(super) fn load_up_to<S: Simd>(s: S, from: &[f32]) -> S::V {
    // SAFETY: reads no more than the slice.
    unsafe {
        if from.len() >= LANES { s.load(from.as_ptr()) } else { s.load_part(from.as_ptr(), from.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

    #[test]
    fn it_agrees_with_f64_on_every_instruction_set() {
        for width in [1, 15, 16, 64, 100, 896] {
            let x: Vec<f32> = (0..20 * width).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.07).collect();
            let weight: Vec<f32> = (0..width).map(|i| 0.5 + (i % 7) as f32 / 7.0).collect();
            let mut first = Vec::new();
            for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                let mut out = vec![0.0; x.len()];
                rms_norm(&mut Cpu::with_isa(threads, isa), &x, &weight, 1e-5, &mut out);
                for (row, got) in x.chunks(width).zip(out.chunks(width)) {
                    let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                    for i in 0..width {
                        let exact = f64::from(row[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                        assert!(
                            (f64::from(got[i]) - exact).abs() < 1e-5,
                            "width {width}: {} for {exact}",
                            got[i]
                        );
                    }
                }
                let bits: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                assert!(first.is_empty() || first == bits, "{threads} threads on {}", isa.name());
                first = bits;
            }
        }
    }

    #[test]
    fn rms_norm_add_adds_rms_norm() {
        let (rows, width) = (11, 100);
        let x: Vec<f32> = (0..rows * width).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.07).collect();
        let weight: Vec<f32> = (0..width).map(|i| 0.5 + (i % 7) as f32 / 7.0).collect();
        let mut expected = vec![0.0; x.len()];
        rms_norm(&mut Cpu::new(2), &x, &weight, 1e-6, &mut expected);
        expected.iter_mut().zip(&x).for_each(|(sum, x)| *sum += 3.0 * x);
        for isa in Isa::available() {
            let mut got: Vec<f32> = x.iter().map(|x| 3.0 * x).collect();
            rms_norm_add(&mut Cpu::with_isa(2, isa), &x, &weight, 1e-6, &mut got);
            assert_eq!(got, expected, "{}", isa.name());
        }
    }

    #[test]
    fn heads_are_normalised_in_place_and_the_rest_is_left_alone() {
        let (rows, stride, width) = (11, 7 * 20, 20);
        let x: Vec<f32> = (0..rows * stride).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.07).collect();
        let weight: Vec<f32> = (0..width).map(|i| 0.5 + (i % 7) as f32 / 7.0).collect();
        let mut got = x.clone();
        rms_norm_heads(&mut Cpu::new(2), &mut got, stride, 2..5, &weight, 1e-6);
        for (head, (got, x)) in got.chunks(width).zip(x.chunks(width)).enumerate() {
            let mut expected = x.to_vec();
            if (2..5).contains(&(head % 7)) {
                rms_norm(&mut Cpu::new(1), x, &weight, 1e-6, &mut expected);
            }
            assert_eq!(got, expected, "head {head}");
        }
    }
}
