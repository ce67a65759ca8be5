//! Quantises weights to small integers: panel by panel, sixteen outputs side by side.
//!
//! Plain loops over arrays of sixteen lanes, without closures and fused operations: compiled for each
//! instruction set, they vectorise and give the same bytes on all of them.

#![allow(clippy::needless_range_loop)] // lanes and columns index several arrays

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::super::input::GROUP;
use super::super::matrix::{Storage, WeightMatrix};
use super::super::simd::{Kernel, LANES, Simd};
use super::scale::{Lanes, Weights, largest};
use super::{Layout, NotFinite, PANEL, PackError, Scales};

/// Bytes of a leaf's scales per panel, in formats with one per output.
const SCALES_BYTES: usize = PANEL * size_of::<f32>();

/// Codes of a group's weights, `[columns][outputs]`.
pub(super) type Codes = [[u32; LANES]; GROUP];

/// How a format quantises.
pub(super) trait Rounding {
    /// Quantises the weights of `group`, and writes to `to` what they need besides codes. `scale` is valid if
    /// the format has one scale per output.
    fn round(weights: &Weights, scale: &Lanes, group: usize, to: &mut Panel<'_>) -> Codes;
}

/// The parts of a panel to write.
pub(super) struct Panel<'a> {
    pub(super) codes: &'a mut [u8],
    pub(super) scales: &'a mut [u8],
    pub(super) zeros: &'a mut [u8],
}

impl<'a> Panel<'a> {
    /// The parts of panel `panel` of the matrix in `to`.
    ///
    /// # Safety
    /// Nothing else uses this panel at the same time.
    pub(super) unsafe fn of(to: &'a DisjointMut<'_, u8>, layout: &Layout, panel: usize) -> Self {
        let scale_bytes = layout.panel_scales() * layout.scale_bytes();
        let zeros = layout.panel_zeros();
        // SAFETY: guaranteed by the caller; parts of different panels do not overlap.
        unsafe {
            Self {
                codes: to.part(panel * layout.panel_bytes(), layout.panel_bytes()),
                scales: to.part(layout.scales_at() + panel * scale_bytes, scale_bytes),
                zeros: to.part(layout.zeros_at() + panel * zeros, zeros),
            }
        }
    }

    /// Writes the codes of `group`.
    #[inline(always)]
    pub(super) fn put_codes(&mut self, layout: &Layout, group: usize, codes: &Codes) {
        let bits = layout.format.bits();
        let (at, _) = layout.code_at(group * GROUP, 0);
        store_codes(codes, bits, &mut self.codes[at..][..GROUP * PANEL * bits as usize / 8]);
    }

    /// Writes the scales of `group`, if groups have their own.
    #[inline(always)]
    pub(super) fn put_scales(&mut self, group: usize, scale: &Lanes) {
        store_f16(scale, &mut self.scales[group * PANEL * 2..][..PANEL * 2]);
    }
}

/// Implements [`pack`](fn@super::pack) for integer formats.
pub(super) fn pack<R: Rounding>(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    let (isa, to, first_bad) = (cpu.isa, DisjointMut::new(to), AtomicUsize::new(usize::MAX));
    cpu.threads.run(layout.panels(), |panel, _| {
        // SAFETY: each panel is in one task.
        let to = unsafe { Panel::of(&to, &layout, panel) };
        let first = panel * PANEL;
        if let Some(row) = isa.run(Quantise::<R> { from, layout, first, to, rounding: PhantomData }) {
            first_bad.fetch_min(row, Ordering::Relaxed);
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        row => Err(not_finite(from, row).into()),
    }
}

/// The first weight of output `row` that is not finite.
fn not_finite(from: &WeightMatrix, row: usize) -> NotFinite {
    let mut weights = vec![0.0; from.cols()];
    from.widen_row(row, &mut weights);
    let col = weights.iter().position(|weight| !weight.is_finite()).unwrap_or_default();
    NotFinite { row, col, value: weights[col] }
}

/// Quantises sixteen outputs from `first` on.
struct Quantise<'a, R> {
    from: &'a WeightMatrix,
    layout: Layout,
    first: usize,
    to: Panel<'a>,
    rounding: PhantomData<R>,
}

impl<R: Rounding> Kernel for Quantise<'_, R> {
    /// The first output with a weight that is not finite.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> Option<usize> {
        let Layout { format, rows, cols, leaves } = self.layout;
        let stride = self.layout.groups() * GROUP;
        let mut wide = vec![0.0f32; PANEL * stride];
        for lane in 0..PANEL.min(rows - self.first) {
            let row = &mut wide[lane * stride..][..cols];
            widen(s, self.from, self.first + lane, row);
            if !all_finite(row) {
                return Some(self.first + lane);
            }
        }
        let groups = self.layout.leaf_groups();
        for leaf in 0..leaves {
            let mut scale = [0.0; LANES];
            if format.scales() == Some(Scales::Outputs) {
                for lane in 0..LANES {
                    let weights = &wide[lane * stride + leaf * groups * GROUP..][..groups * GROUP];
                    scale[lane] = largest(weights) / 127.0;
                }
                store_f32(&scale, &mut self.to.scales[leaf * SCALES_BYTES..][..SCALES_BYTES]);
            }
            for group in leaf * groups..(leaf + 1) * groups {
                let weights = transpose(&wide[group * GROUP..], stride);
                let codes = R::round(&weights, &scale, group, &mut self.to);
                self.to.put_codes(&self.layout, group, &codes);
            }
        }
        None
    }
}

/// Weights divided by their outputs' scales.
#[inline(always)]
pub(super) fn in_units(weights: &Weights, scale: &Lanes) -> Weights {
    let (mut units, per_unit) = ([[0.0; LANES]; GROUP], inverse(scale));
    for col in 0..GROUP {
        for lane in 0..LANES {
            units[col][lane] = weights[col][lane] * per_unit[lane];
        }
    }
    units
}

/// `1 / scale`, or 0 if that is not finite.
#[inline(always)]
fn inverse(scale: &Lanes) -> Lanes {
    let mut per_unit = [0.0; LANES];
    for lane in 0..LANES {
        let inverse = 1.0 / scale[lane];
        per_unit[lane] = if inverse.is_finite() { inverse } else { 0.0 };
    }
    per_unit
}

/// Widens a row of weights.
#[inline(always)]
fn widen<S: Simd>(s: S, from: &WeightMatrix, row: usize, to: &mut [f32]) {
    let bytes = from.row_bytes();
    let width = bytes / to.len();
    let whole = to.len() / LANES * LANES;
    let values = from.row(row);
    for at in (0..whole).step_by(LANES) {
        let part = &values[at * width..][..LANES * width];
        let lanes = &mut to[at..][..LANES];
        // SAFETY: sixteen values of the format's width and sixteen lanes.
        unsafe {
            let wide = match from.storage() {
                Storage::Bf16(_) => s.load_bf16(part.as_ptr()),
                Storage::F16(_) => s.load_f16(part.as_ptr()),
                _ => s.load(part.as_ptr().cast()),
            };
            s.store(wide, lanes.as_mut_ptr());
        }
    }
    let rest = &mut to[whole..];
    let mut last = [0u8; LANES * size_of::<f32>()];
    last[..rest.len() * width].copy_from_slice(&values[whole * width..]);
    // SAFETY: `last` has sixteen values of any format; `rest` has fewer than sixteen.
    unsafe {
        let wide = match from.storage() {
            Storage::Bf16(_) => s.load_bf16(last.as_ptr()),
            Storage::F16(_) => s.load_f16(last.as_ptr()),
            _ => s.load(last.as_ptr().cast()),
        };
        s.store_part(wide, rest.as_mut_ptr(), rest.len());
    }
}

/// Whether no value is NaN or infinite.
#[inline(always)]
fn all_finite(values: &[f32]) -> bool {
    let mut highest = 0;
    for value in values {
        highest = highest.max(value.to_bits() & 0x7fff_ffff);
    }
    highest < f32::INFINITY.to_bits()
}

/// Transposes a group's weights so that outputs are lanes; rows are `stride` apart.
#[inline(always)]
fn transpose(rows: &[f32], stride: usize) -> Weights {
    let mut weights = [[0.0; LANES]; GROUP];
    for lane in 0..LANES {
        let row = &rows[lane * stride..][..GROUP];
        for col in 0..GROUP {
            weights[col][lane] = row[col];
        }
    }
    weights
}

/// Quantises a group's weights.
#[inline(always)]
pub(super) fn encode(weights: &Weights, scale: &Lanes, zero: &Lanes, most: u32) -> Codes {
    let (mut codes, per_unit) = ([[0; LANES]; GROUP], inverse(scale));
    for col in 0..GROUP {
        for lane in 0..LANES {
            let code = (weights[col][lane] * per_unit[lane]).round_ties_even() + zero[lane];
            codes[col][lane] = code.clamp(0.0, most as f32) as u32;
        }
    }
    codes
}

/// Stores four columns of an output side by side; with 4 bits, the next four columns in the high halves.
#[inline(always)]
fn store_codes(codes: &Codes, bits: u32, to: &mut [u8]) {
    let columns = if bits == 4 { 8 } else { 4 };
    for (step, to) in to.chunks_exact_mut(4 * PANEL).enumerate() {
        let mut words = [0; LANES];
        for j in 0..4 {
            let (low, high) = (&codes[step * columns + j], &codes[step * columns + (j + 4) % columns]);
            for lane in 0..LANES {
                let byte = if bits == 4 { low[lane] | high[lane] << 4 } else { low[lane] };
                words[lane] |= byte << (8 * j);
            }
        }
        for lane in 0..LANES {
            to[lane * 4..][..4].copy_from_slice(&words[lane].to_le_bytes());
        }
    }
}

#[inline(always)]
fn store_f32(values: &Lanes, to: &mut [u8]) {
    for (to, value) in to.chunks_exact_mut(4).zip(values) {
        to.copy_from_slice(&value.to_le_bytes());
    }
}

#[inline(always)]
fn store_f16(values: &Lanes, to: &mut [u8]) {
    for (to, value) in to.chunks_exact_mut(2).zip(values) {
        to.copy_from_slice(&half::f16::from_f32(*value).to_le_bytes());
    }
}
