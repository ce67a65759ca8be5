//! The inner loops: rows of activations against panels of sixteen outputs, all sums in registers.
//!
//! Plain loops over constant bounds, no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use super::super::super::input::GROUP;
use super::super::super::packed::{Format, Layout, PANEL};
use super::super::super::simd::Simd;
use super::super::super::simd::integer::Integers;
use super::super::tiles::Ahead;
use super::SEGMENT;

/// Bytes that four columns of 8-bit codes, or eight of 4-bit codes, take in a panel.
const VECTOR: usize = 4 * PANEL;

/// Rows of `x` and panels of weights, each from its first one on.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// Codes of activations, their rows `code_stride` apart.
    pub(super) codes: &'a [i8],
    pub(super) code_stride: usize,
    /// Sums of groups, their rows `sum_stride` apart.
    pub(super) sums: &'a [i32],
    pub(super) sum_stride: usize,
    /// Sums of rows.
    pub(super) totals: &'a [i32],
    pub(super) weights: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) zeros: &'a [u8],
    pub(super) layout: Layout,
    /// Panels from one to the next.
    pub(super) apart: usize,
    pub(super) ahead: Ahead,
}

/// How sums become floats.
pub(super) trait Kind {
    const FORMAT: Format;

    /// The products of `MR` rows and `NR` panels, without the rows' scales.
    ///
    /// # Safety
    /// The tile has as many rows and panels.
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        tile: &Source<'_>,
    ) -> [[<S::Floats as Simd>::V; NR]; MR];
}

impl Source<'_> {
    /// Panics unless all that `MR` rows and `NR` panels need is there.
    #[inline(always)]
    fn check(&self, rows: usize, panels: usize) {
        let last = (panels - 1) * self.apart + 1;
        let columns = self.layout.groups() * GROUP;
        assert!(columns <= self.code_stride && columns / GROUP <= self.sum_stride, "rows have all columns");
        assert!(self.codes.len() >= rows * self.code_stride, "codes of all rows");
        assert!(self.sums.len() >= rows * self.sum_stride, "sums of all rows");
        assert!(self.weights.len() >= last * self.layout.panel_bytes(), "codes of all panels");
        let scales = last * self.layout.panel_scales();
        assert!(self.scales.len() >= scales * self.layout.scale_bytes(), "scales of all panels");
        assert!(self.layout.format != Format::Int4Zero || self.zeros.len() >= scales, "zero points");
    }
}

/// 8 bits, one scale for each output.
pub(super) struct PerOutput;

impl Kind for PerOutput {
    const FORMAT: Format = Format::Int8;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &Source<'_>,
    ) -> [[<S::Floats as Simd>::V; NR]; MR] {
        t.check(MR, NR);
        let f = s.floats();
        let (columns, apart) = (t.layout.groups() * GROUP, t.apart * t.layout.panel_bytes());
        let mut ahead = t.ahead.over(t.layout.groups());
        let mut results = [[f.zero(); NR]; MR];
        let mut from = 0;
        while from < columns {
            let to = columns.min(from + SEGMENT);
            let mut sums = [[s.splat(0); NR]; MR];
            for m in 0..MR {
                let sum = if columns <= SEGMENT {
                    t.totals[m]
                } else {
                    t.sums[m * t.sum_stride..][from / GROUP..to / GROUP].iter().sum::<i32>()
                };
                sums[m] = [s.splat(-i32::from(Format::Int8.zero()) * sum); NR];
            }
            // SAFETY: the check above; four columns of all rows and panels lie inside.
            unsafe {
                let mut x = t.codes.as_ptr().add(from);
                let mut w = t.weights.as_ptr().add(from * PANEL);
                let end = x.add(to - from);
                while x < end {
                    ahead.ask::<_, NR>(f, w, apart, GROUP * PANEL);
                    sums = eight_bits::<S, MR, NR>(s, t, x, w, apart, sums);
                    (x, w) = (x.add(GROUP), w.add(GROUP * PANEL));
                }
                for n in 0..NR {
                    let scale = f.load(t.scales.as_ptr().add(n * t.apart * PANEL * 4).cast());
                    for m in 0..MR {
                        results[m][n] = f.fma(s.to_floats(sums[m][n]), scale, results[m][n]);
                    }
                }
            }
            from = to;
        }
        results
    }
}

/// How a group's codes are read.
pub(super) trait Codes {
    const FORMAT: Format;
}

pub(super) struct GroupedBytes;
pub(super) struct FourBits;
pub(super) struct FourBitsZero;

impl Codes for GroupedBytes {
    const FORMAT: Format = Format::Int8Group;
}
impl Codes for FourBits {
    const FORMAT: Format = Format::Int4;
}
impl Codes for FourBitsZero {
    const FORMAT: Format = Format::Int4Zero;
}

/// A scale for each output and group.
pub(super) struct Grouped<C>(std::marker::PhantomData<C>);

impl<C: Codes> Kind for Grouped<C> {
    const FORMAT: Format = C::FORMAT;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &Source<'_>,
    ) -> [[<S::Floats as Simd>::V; NR]; MR] {
        t.check(MR, NR);
        let f = s.floats();
        let (groups, apart) = (t.layout.groups(), t.apart * t.layout.panel_bytes());
        let scales_apart = t.apart * t.layout.panel_scales();
        let mut ahead = t.ahead.over(groups);
        let mut results = [[f.zero(); NR]; MR];
        let mut zeros = [s.splat_zeros(C::FORMAT.zero()); NR];
        // SAFETY: the check above; a group of all rows and panels lies inside.
        unsafe {
            let (mut x, mut w) = (t.codes.as_ptr(), t.weights.as_ptr());
            let (mut scales, mut zero_points) = (t.scales.as_ptr(), t.zeros.as_ptr());
            for group in 0..groups {
                let row_sums = t.sums.as_ptr().add(group);
                if matches!(C::FORMAT, Format::Int4Zero) {
                    for n in 0..NR {
                        zeros[n] = s.load_zeros(zero_points.add(n * scales_apart));
                    }
                }
                let mut starts = [[s.splat(0); NR]; MR];
                for m in 0..MR {
                    let sum = *row_sums.add(m * t.sum_stride);
                    for n in 0..NR {
                        starts[m][n] = s.minus_times(zeros[n], sum);
                    }
                }
                let sums = match C::FORMAT.bits() {
                    4 => four_bits::<S, MR, NR>(s, t, x, w, apart, starts),
                    _ => eight_bits::<S, MR, NR>(s, t, x, w, apart, starts),
                };
                for n in 0..NR {
                    let scale = f.load_f16(scales.add(n * scales_apart * 2));
                    for m in 0..MR {
                        results[m][n] = f.fma(s.to_floats(sums[m][n]), scale, results[m][n]);
                    }
                }
                let group_bytes = GROUP * PANEL * C::FORMAT.bits() as usize / 8;
                if let Ahead::Soon(bytes @ 1..) = t.ahead {
                    for n in 0..NR {
                        f.prefetch(scales.wrapping_add(n * scales_apart * 2 + bytes / 8));
                    }
                }
                ahead.ask::<_, NR>(f, w, apart, group_bytes);
                (x, w) = (x.add(GROUP), w.add(group_bytes));
                (scales, zero_points) = (scales.add(PANEL * 2), zero_points.wrapping_add(PANEL));
            }
        }
        results
    }
}

/// Adds the products of a group of 8-bit codes.
///
/// # Safety
/// A group of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
unsafe fn eight_bits<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &Source<'_>,
    x: *const i8,
    w: *const u8,
    apart: usize,
    mut sums: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    for step in 0..GROUP / 4 {
        // SAFETY: by the contract.
        unsafe {
            let mut codes = [s.load(w.add(step * VECTOR)); NR];
            for n in 0..NR {
                codes[n] = s.load(w.add(n * apart + step * VECTOR));
            }
            for m in 0..MR {
                let four = s.four(x.add(m * t.code_stride + step * 4));
                for n in 0..NR {
                    sums[m][n] = s.dot(sums[m][n], codes[n], four);
                }
            }
        }
    }
    sums
}

/// Adds the products of a group of 4-bit codes.
///
/// # Safety
/// A group of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
unsafe fn four_bits<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &Source<'_>,
    x: *const i8,
    w: *const u8,
    apart: usize,
    starts: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    let mut small = [[s.begin_small(starts[0][0]); NR]; MR];
    for m in 0..MR {
        for n in 0..NR {
            small[m][n] = s.begin_small(starts[m][n]);
        }
    }
    for step in 0..GROUP / 8 {
        // SAFETY: by the contract.
        unsafe {
            let mut low = [s.load(w.add(step * VECTOR)); NR];
            let mut high = low;
            for n in 0..NR {
                let both = s.load(w.add(n * apart + step * VECTOR));
                (low[n], high[n]) = (s.low(both), s.high(both));
            }
            for m in 0..MR {
                let at = x.add(m * t.code_stride + step * 8);
                let four = s.four(at);
                for n in 0..NR {
                    small[m][n] = s.dot_small(small[m][n], low[n], four);
                }
                let four = s.four(at.add(4));
                for n in 0..NR {
                    small[m][n] = s.dot_small(small[m][n], high[n], four);
                }
            }
        }
    }
    let mut sums = starts;
    for m in 0..MR {
        for n in 0..NR {
            sums[m][n] = s.end_small(small[m][n], starts[m][n]);
        }
    }
    sums
}
