//! How packed weights are made: panel by panel, sixteen outputs side by side.
//!
//! Plain loops over arrays of sixteen lanes, no closures and nothing fused: compiled for each instruction set, they are vector
//! instructions and give the same bytes on all of them.

#![allow(clippy::needless_range_loop)] // lanes and columns index several arrays

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Cpu;
use super::super::input::GROUP;
use super::super::matrix::{Storage, WeightMatrix};
use super::super::shared::Shared;
use super::super::simd::{Kernel, LANES, Simd};
use super::scale::{Lanes, Weights, four_bits_zero, largest, steps};
use super::{Format, Layout, PANEL, Packed, ZERO, fold};

/// A weight that no integer can stand for.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "the weight of output {row} and input {col} is {value}, only finite ones can be rounded to integers; repair the checkpoint or load it without quantization"
)]
pub struct NotFinite {
    /// Its output.
    pub row: usize,
    /// Its input.
    pub col: usize,
    /// What it is.
    pub value: f32,
}

/// Why a matrix does not lie in a format.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PackError {
    /// A weight is to be rounded that cannot.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// [`Format::Bf16Folded`] has no room for so many high bytes that are in no table.
    #[error(
        "{patches} weights have exponents that are rare among their neighbours, and folding has room for {room}; leave them in 16 bits"
    )]
    ManyExponents {
        /// Such weights.
        patches: usize,
        /// How many there may be.
        room: usize,
    },
}

/// Writes `from` to `to` in `layout`, with all threads: rounded where that is one of integers.
///
/// # Errors
/// If a weight that is to be rounded is infinite or no number, or exponents are too many to be folded. `to` then holds nothing
/// of use.
///
/// # Panics
/// If the shapes disagree, or the layout is that of other floating-point numbers.
pub fn pack(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    assert_eq!((from.rows(), from.cols()), (layout.rows, layout.cols), "the layout is the matrix's");
    assert_eq!(to.len(), layout.bytes(), "a packed matrix fills its bytes");
    let format = layout.format;
    let stored = from.storage().format();
    let is_as_stored = format == stored || (format == Format::Bf16Folded && stored == Format::Bf16);
    assert!(format.is_integer() || is_as_stored, "numbers are packed as they are");
    if format == Format::Bf16Folded {
        return fold::pack(cpu, from, layout, to);
    }
    let (isa, to, first_bad) = (cpu.isa, Shared::new(to), AtomicUsize::new(usize::MAX));
    cpu.threads.run(layout.panels(), |panel, _| {
        let scale_bytes = layout.panel_scales() * layout.scale_bytes();
        let zeros = layout.panel_zeros();
        // SAFETY: each panel is in one task, and its parts lie apart from other panels'.
        let (codes, scales, zeros) = unsafe {
            (
                to.part(panel * layout.panel_bytes(), layout.panel_bytes()),
                to.part(layout.scales_at() + panel * scale_bytes, scale_bytes),
                to.part(layout.zeros_at() + panel * zeros, zeros),
            )
        };
        let first = panel * PANEL;
        if !format.is_integer() {
            return isa.run(LaidOut { from, layout, first, to: codes });
        }
        if let Some(row) = isa.run(Rounded { from, layout, first, codes, scales, zeros }) {
            first_bad.fetch_min(row, Ordering::Relaxed);
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        row => Err(not_finite(from, row).into()),
    }
}

impl Packed {
    /// `from` in `format`, in memory.
    ///
    /// # Errors
    /// See [`pack`].
    pub fn of(cpu: &mut Cpu, from: &WeightMatrix, format: Format) -> Result<Self, PackError> {
        let layout = Layout { format, rows: from.rows(), cols: from.cols() };
        let mut bytes = vec![0; layout.bytes()];
        pack(cpu, from, layout, &mut bytes)?;
        Ok(Self::new(layout, bytes.into()))
    }
}

/// The first weight of output `row` that is not finite.
fn not_finite(from: &WeightMatrix, row: usize) -> NotFinite {
    let mut weights = vec![0.0; from.cols()];
    from.widen_row(row, &mut weights);
    let col = weights.iter().position(|weight| !weight.is_finite()).unwrap_or_default();
    NotFinite { row, col, value: weights[col] }
}

/// Sixteen outputs from `first` on as they are, and where they go.
pub(super) struct LaidOut<'a> {
    pub(super) from: &'a WeightMatrix,
    pub(super) layout: Layout,
    pub(super) first: usize,
    /// `[columns][16 outputs]` in the layout's format, of at least as many columns as the matrix has.
    pub(super) to: &'a mut [u8],
}

impl Kernel for LaidOut<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A vector of each output at a time: sixteen words, which are a column or two each.
        const WORD: usize = size_of::<u32>();
        const VECTOR: usize = LANES * WORD;
        let row_bytes = self.from.row_bytes();
        let rows = PANEL.min(self.layout.rows - self.first);
        let values = &self.from.storage().bytes()[self.first * row_bytes..][..rows * row_bytes];
        for (step, to) in self.to.chunks_mut(VECTOR * LANES).enumerate() {
            let part = step * VECTOR..row_bytes.min((step + 1) * VECTOR);
            let mut vectors = [s.zero(); LANES];
            for (row, values) in values.chunks_exact(row_bytes).enumerate() {
                let mut padded = [0u8; VECTOR];
                let mut from = values[part.clone()].as_ptr();
                if part.len() < VECTOR {
                    padded[..part.len()].copy_from_slice(&values[part.clone()]);
                    from = padded.as_ptr();
                }
                // SAFETY: a vector's bytes lie there.
                vectors[row] = unsafe { s.load(from.cast()) };
            }
            let outputs = s.transpose(vectors);
            for (output, to) in outputs.into_iter().zip(to.chunks_exact_mut(VECTOR)) {
                let mut words = [0u32; LANES];
                // SAFETY: sixteen words.
                unsafe { s.store(output, words.as_mut_ptr().cast()) };
                match self.layout.format {
                    Format::Bf16 => words = without_subnormals(words),
                    Format::F16 => words = side_by_side(words),
                    _ => {}
                }
                for lane in 0..LANES {
                    to[lane * WORD..][..WORD].copy_from_slice(&words[lane].to_le_bytes());
                }
            }
        }
    }
}

/// Pairs of bfloat16 with zeros for subnormals.
#[inline(always)]
fn without_subnormals(mut pairs: [u32; LANES]) -> [u32; LANES] {
    const EXPONENT: u32 = 0x7f80;
    for lane in 0..LANES {
        let pair = pairs[lane];
        let low = if pair & EXPONENT == 0 { 0x8000 } else { 0xffff };
        let high = if pair & EXPONENT << 16 == 0 { 0x8000_0000 } else { 0xffff_0000 };
        pairs[lane] = pair & (low | high);
    }
    pairs
}

/// Sixteen pairs of columns as one column, then the other.
#[inline(always)]
fn side_by_side(pairs: [u32; LANES]) -> [u32; LANES] {
    let mut columns = [0; LANES];
    for lane in 0..LANES / 2 {
        let (even, odd) = (pairs[2 * lane], pairs[2 * lane + 1]);
        columns[lane] = even & 0xffff | odd << 16;
        columns[lane + LANES / 2] = even >> 16 | odd & 0xffff_0000;
    }
    columns
}

/// Sixteen outputs from `first` on as integers, and where they go.
struct Rounded<'a> {
    from: &'a WeightMatrix,
    layout: Layout,
    first: usize,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
    zeros: &'a mut [u8],
}

impl Kernel for Rounded<'_> {
    /// The first output with a weight that is not finite.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Option<usize> {
        let Layout { format, rows, cols } = self.layout;
        let stride = self.layout.groups() * GROUP;
        let mut wide = vec![0.0f32; PANEL * stride];
        for lane in 0..PANEL.min(rows - self.first) {
            let row = &mut wide[lane * stride..][..cols];
            widen(s, self.from, self.first + lane, row);
            if !all_finite(row) {
                return Some(self.first + lane);
            }
        }
        let mut scale = [0.0; LANES];
        if !format.has_groups() {
            for lane in 0..LANES {
                scale[lane] = largest(&wide[lane * stride..][..stride]) / 127.0;
            }
            store_f32(&scale, self.scales);
        }
        let mut zero = [f32::from(ZERO); LANES];
        let group_bytes = GROUP * PANEL * format.bits() as usize / 8;
        for group in 0..self.layout.groups() {
            let weights = transpose(&wide[group * GROUP..], stride);
            let scales = group * PANEL * 2..(group + 1) * PANEL * 2;
            let words = match format {
                Format::Int4 => {
                    let (found, words) = steps(&in_units(&weights, &scale));
                    let at = Layout::step_at(group * GROUP, 0);
                    for (lane, to) in self.codes[at..][..PANEL].iter_mut().enumerate() {
                        *to = found.multiplier[lane] as u8 | (found.zero[lane] as u8) << 4;
                    }
                    words
                }
                Format::Int4Zero => {
                    (scale, zero) = four_bits_zero(&weights);
                    store_f16(&scale, &mut self.scales[scales]);
                    for (lane, to) in self.zeros[group * PANEL..][..PANEL].iter_mut().enumerate() {
                        *to = zero[lane] as u8;
                    }
                    encode(&weights, &scale, &zero, 15)
                }
                Format::Int8Group => {
                    scale = super::scale::eight_bits(&weights);
                    store_f16(&scale, &mut self.scales[scales]);
                    encode(&weights, &scale, &zero, 255)
                }
                _ => encode(&weights, &scale, &zero, 255),
            };
            let (at, _) = self.layout.code_at(group * GROUP, 0);
            store_codes(&words, format.bits(), &mut self.codes[at..][..group_bytes]);
        }
        None
    }
}

/// Weights in steps of their outputs' scales.
#[inline(always)]
fn in_units(weights: &Weights, scale: &Lanes) -> Weights {
    let (mut units, per_unit) = ([[0.0; LANES]; GROUP], inverse(scale));
    for col in 0..GROUP {
        for lane in 0..LANES {
            units[col][lane] = weights[col][lane] * per_unit[lane];
        }
    }
    units
}

/// `1 / scale`, 0 where that is no finite number.
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
    let values = &from.storage().bytes()[row * bytes..][..bytes];
    for at in (0..whole).step_by(LANES) {
        let part = &values[at * width..][..LANES * width];
        let lanes = &mut to[at..][..LANES];
        // SAFETY: sixteen values of the format's width, sixteen lanes.
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

/// Whether no exponent is all ones.
#[inline(always)]
fn all_finite(values: &[f32]) -> bool {
    let mut highest = 0;
    for value in values {
        highest = highest.max(value.to_bits() & 0x7fff_ffff);
    }
    highest < f32::INFINITY.to_bits()
}

/// A group's weights with the outputs in the lanes, from rows that are `stride` apart.
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

/// Codes of a group's weights.
#[inline(always)]
fn encode(weights: &Weights, scale: &Lanes, zero: &Lanes, most: u32) -> [[u32; LANES]; GROUP] {
    let (mut codes, per_unit) = ([[0; LANES]; GROUP], inverse(scale));
    for col in 0..GROUP {
        for lane in 0..LANES {
            let code = (weights[col][lane] * per_unit[lane]).round_ties_even() + zero[lane];
            codes[col][lane] = code.clamp(0.0, most as f32) as u32;
        }
    }
    codes
}

/// Four columns of an output side by side; with 4 bits the next four above them.
#[inline(always)]
fn store_codes(codes: &[[u32; LANES]; GROUP], bits: u32, to: &mut [u8]) {
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
