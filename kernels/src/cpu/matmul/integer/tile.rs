//! What a tile reads, and the inner loops that formats share: rows of activations against panels of sixteen outputs, all sums in
//! registers.
//!
//! Plain loops over constant bounds, no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::ops::Range;

use super::super::super::input::GROUP;
use super::super::super::packed::{Format, Layout, PANEL, ZERO};
use super::super::super::simd::Simd;
use super::super::super::simd::integer::Integers;
use super::super::part::Part;
use super::super::tiles::{Ahead, Tile};

/// Bytes that four columns of 8-bit codes, or eight of 4-bit codes, take in a panel.
pub(in crate::cpu) const VECTOR: usize = 4 * PANEL;

/// Rows of `x` and panels of weights, each from its first one on.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Source<'a> {
    /// Codes of activations, their rows `code_stride` apart.
    pub(in crate::cpu) codes: &'a [i8],
    pub(in crate::cpu) code_stride: usize,
    /// Sums of groups, their rows `sum_stride` apart.
    pub(in crate::cpu) sums: &'a [i32],
    pub(in crate::cpu) sum_stride: usize,
    /// Sums of rows.
    pub(in crate::cpu) totals: &'a [i32],
    pub(in crate::cpu) weights: &'a [u8],
    pub(in crate::cpu) scales: &'a [u8],
    pub(in crate::cpu) zeros: &'a [u8],
    pub(in crate::cpu) layout: Layout,
    /// Panels from one to the next.
    pub(in crate::cpu) apart: usize,
    pub(in crate::cpu) ahead: &'a Ahead,
}

/// Floats of a tile's rows and panels.
pub(in crate::cpu) type Floats<S, const MR: usize, const NR: usize> =
    [[<<S as Integers>::Floats as Simd>::V; NR]; MR];

/// How sums become floats.
pub(in crate::cpu) trait Kind {
    const FORMAT: Format;

    /// The products of `MR` rows and `NR` panels, without the rows' scales.
    ///
    /// # Safety
    /// The tile has as many rows and panels.
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(s: S, t: &Source<'_>) -> Floats<S, MR, NR>;
}

impl<'a> Source<'a> {
    /// What a tile of `part` reads.
    #[inline(always)]
    pub(in crate::cpu) fn of(part: &'a Part<'_>, tile: &'a Tile) -> Self {
        let (x, packed) = (part.x, part.linear.weights);
        let (layout, (codes, _, sums)) = (packed.layout(), x.codes());
        let (panel, row) = (part.first / PANEL + tile.panel, part.rows.start + tile.first);
        Self {
            codes: &codes[row * x.code_stride()..],
            sums: &sums[row * x.sum_stride()..],
            totals: &x.totals()[row..],
            code_stride: x.code_stride(),
            sum_stride: x.sum_stride(),
            weights: &packed.values()[panel * layout.panel_bytes()..],
            scales: &packed.scales()[panel * layout.panel_scales() * layout.scale_bytes()..],
            zeros: packed.zeros().get(panel * layout.panel_zeros()..).unwrap_or_default(),
            layout,
            apart: tile.apart,
            ahead: &tile.ahead,
        }
    }

    /// Panics unless all that `MR` rows and `NR` panels need is there.
    #[inline(always)]
    pub(in crate::cpu) fn check(&self, rows: usize, panels: usize) {
        let last = (panels - 1) * self.apart + 1;
        let columns = self.layout.groups() * GROUP;
        assert!(columns <= self.code_stride && columns / GROUP <= self.sum_stride, "rows have all columns");
        assert!(self.codes.len() >= rows * self.code_stride, "codes of all rows");
        assert!(self.sums.len() >= rows * self.sum_stride, "sums of all rows");
        assert!(self.weights.len() >= last * self.layout.panel_bytes(), "codes of all panels");
        let scales = last * self.layout.panel_scales();
        assert!(self.scales.len() >= scales * self.layout.scale_bytes(), "scales of all panels");
        assert!(self.zeros.len() >= last * self.layout.panel_zeros(), "zero points of all panels");
    }

    /// What sums of products with 8-bit codes start at, for some groups' columns.
    #[inline(always)]
    pub(in crate::cpu) fn bytes_begin<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        groups: Range<usize>,
    ) -> [[S::Sums; NR]; MR] {
        let mut sums = [[s.splat(0); NR]; MR];
        for m in 0..MR {
            let sum: i32 = match groups.len() == self.layout.groups() {
                true => self.totals[m],
                false => self.sums[m * self.sum_stride..][groups.clone()].iter().sum(),
            };
            sums[m] = [s.splat(-i32::from(ZERO) * sum); NR];
        }
        sums
    }

    /// Adds whole sums times their outputs' scales.
    ///
    /// # Safety
    /// [`Source::check`] passed for `NR` panels with a scale for each output.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn add_scaled<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        mut results: Floats<S, MR, NR>,
        sums: [[S::Sums; NR]; MR],
    ) -> Floats<S, MR, NR> {
        let f = s.floats();
        for n in 0..NR {
            // SAFETY: by the contract.
            let scale = unsafe { f.load(self.scales.as_ptr().add(n * self.apart * PANEL * 4).cast()) };
            for m in 0..MR {
                results[m][n] = f.fma(s.to_floats(sums[m][n]), scale, results[m][n]);
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
pub(in crate::cpu) unsafe fn eight_bits<S: Integers, const MR: usize, const NR: usize>(
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
pub(in crate::cpu) unsafe fn four_bits<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &Source<'_>,
    x: *const i8,
    w: *const u8,
    apart: usize,
    mut small: [[S::Small; NR]; MR],
) -> [[S::Small; NR]; MR] {
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
    small
}
