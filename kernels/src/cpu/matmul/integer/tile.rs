//! Inputs of a tile, and the inner loops that several formats share: rows of activations by panels of sixteen
//! outputs, with all sums in registers.
//!
//! Plain loops with constant bounds and no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::ops::Range;

use super::super::super::input::GROUP;
use super::super::super::packed::{Format, Layout, PANEL, ZERO};
use super::super::super::simd::Simd;
use super::super::super::simd::integer::Integers;
use super::super::part::Part;
use super::super::tiles::{Prefetch, PrefetchCursor, Tile};

/// Bytes of four columns of 8-bit codes, or of eight columns of 4-bit codes, in a panel.
pub(in crate::cpu) const VECTOR: usize = 4 * PANEL;

/// Rows of `x` and panels of weights, each from the tile's first one on.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct IntegerTileInputs<'a> {
    /// Codes of activations; rows are `code_stride` apart.
    pub(in crate::cpu) codes: &'a [i8],
    pub(in crate::cpu) code_stride: usize,
    /// Sums of groups; rows are `sum_stride` apart.
    pub(in crate::cpu) sums: &'a [i32],
    pub(in crate::cpu) sum_stride: usize,
    /// Sums of half groups; rows are `2 * sum_stride` apart.
    pub(in crate::cpu) half_sums: &'a [i32],
    /// Sums of the rows' leaves, `[rows][leaves]`.
    pub(in crate::cpu) totals: &'a [i32],
    pub(in crate::cpu) weights: &'a [u8],
    pub(in crate::cpu) scales: &'a [u8],
    pub(in crate::cpu) zeros: &'a [u8],
    pub(in crate::cpu) layout: Layout,
    /// Distance between neighbouring panels, in panels.
    pub(in crate::cpu) apart: usize,
    pub(in crate::cpu) prefetch: &'a Prefetch,
}

/// Results of a tile's rows and panels.
pub(in crate::cpu) type Floats<S, const MR: usize, const NR: usize> =
    [[<<S as Integers>::Floats as Simd>::V; NR]; MR];

/// The part of a kernel that depends on the format: from codes to results.
pub(in crate::cpu) trait Kind {
    const FORMAT: Format;

    /// Sums over one leaf of `MR` rows and `NR` panels, without the rows' scales.
    ///
    /// # Safety
    /// [`IntegerTileInputs::check`] has passed for `MR` rows and `NR` panels, and the leaf exists.
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        leaf: usize,
        prefetch: &mut PrefetchCursor,
    ) -> Floats<S, MR, NR>;
}

impl<'a> IntegerTileInputs<'a> {
    /// The inputs of `tile`.
    #[inline(always)]
    pub(in crate::cpu) fn of(part: &'a Part<'_>, tile: &'a Tile) -> Self {
        let (x, packed) = (part.x, part.linear.weights);
        let (layout, (codes, _, sums)) = (packed.layout(), x.codes());
        let (panel, row) = (part.first / PANEL + tile.panel, part.rows.start + tile.first);
        Self {
            codes: &codes[row * x.code_stride()..],
            sums: &sums[row * x.sum_stride()..],
            half_sums: &x.half_sums()[2 * row * x.sum_stride()..],
            totals: &x.totals()[row * layout.leaves..],
            code_stride: x.code_stride(),
            sum_stride: x.sum_stride(),
            weights: &packed.values()[panel * layout.panel_bytes()..],
            scales: &packed.scales()[panel * layout.panel_scales() * layout.scale_bytes()..],
            zeros: packed.zeros().get(panel * layout.panel_zeros()..).unwrap_or_default(),
            layout,
            apart: tile.apart,
            prefetch: &tile.prefetch,
        }
    }

    /// Asserts that the inputs contain `rows` rows and `panels` panels.
    #[inline(always)]
    pub(in crate::cpu) fn check(&self, rows: usize, panels: usize) {
        let last = (panels - 1) * self.apart + 1;
        let columns = self.layout.groups() * GROUP;
        assert!(columns <= self.code_stride && columns / GROUP <= self.sum_stride, "rows have all columns");
        assert!(self.codes.len() >= rows * self.code_stride, "codes of all rows");
        assert!(self.sums.len() >= rows * self.sum_stride, "sums of all rows");
        assert!(self.half_sums.len() >= 2 * rows * self.sum_stride, "sums of all rows");
        assert!(self.totals.len() >= rows * self.layout.leaves, "sums of all leaves");
        assert!(self.weights.len() >= last * self.layout.panel_bytes(), "codes of all panels");
        let scales = last * self.layout.panel_scales();
        assert!(self.scales.len() >= scales * self.layout.scale_bytes(), "scales of all panels");
        assert!(self.zeros.len() >= last * self.layout.panel_zeros(), "zero points of all panels");
    }

    /// Initial sums of products with 8-bit codes, for the columns of some groups of a leaf.
    #[inline(always)]
    pub(in crate::cpu) fn bytes_begin<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        leaf: usize,
        groups: Range<usize>,
    ) -> [[S::Sums; NR]; MR] {
        let mut sums = [[s.splat(0); NR]; MR];
        for m in 0..MR {
            let sum: i32 = if groups.len() == self.layout.leaf_groups() {
                self.totals[m * self.layout.leaves + leaf]
            } else {
                self.sums[m * self.sum_stride..][groups.clone()].iter().sum()
            };
            sums[m] = [s.splat(-i32::from(ZERO) * sum); NR];
        }
        sums
    }

    /// Adds the integer sums of a leaf, times the outputs' scales.
    ///
    /// # Safety
    /// [`IntegerTileInputs::check`] has passed for `NR` panels, the leaf exists, and the format has one scale
    /// per output and leaf.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn add_scaled<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        leaf: usize,
        mut results: Floats<S, MR, NR>,
        sums: [[S::Sums; NR]; MR],
    ) -> Floats<S, MR, NR> {
        let f = s.floats();
        for n in 0..NR {
            let scale = (n * self.apart * self.layout.leaves + leaf) * PANEL * 4;
            // SAFETY: guaranteed by the caller.
            let scale = unsafe { f.load(self.scales.as_ptr().add(scale).cast()) };
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
    t: &IntegerTileInputs<'_>,
    x: *const i8,
    w: *const u8,
    apart: usize,
    mut sums: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    for step in 0..GROUP / 4 {
        // SAFETY: guaranteed by the caller.
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
    t: &IntegerTileInputs<'_>,
    x: *const i8,
    w: *const u8,
    apart: usize,
    mut small: [[S::Small; NR]; MR],
) -> [[S::Small; NR]; MR] {
    for step in 0..GROUP / 8 {
        // SAFETY: guaranteed by the caller.
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

/// Adds the products of a group of codes of 4 or 8 bits. `bits` must be a constant.
///
/// # Safety
/// A group of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
pub(in crate::cpu) unsafe fn add_group<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    bits: usize,
    t: &IntegerTileInputs<'_>,
    x: *const i8,
    (w, apart): (*const u8, usize),
    mut sums: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if bits == 8 {
            return eight_bits::<S, MR, NR>(s, t, x, w, apart, sums);
        }
        let mut small = [[s.begin_small(sums[0][0]); NR]; MR];
        for m in 0..MR {
            for n in 0..NR {
                small[m][n] = s.begin_small(sums[m][n]);
            }
        }
        small = four_bits::<S, MR, NR>(s, t, x, w, apart, small);
        for m in 0..MR {
            for n in 0..NR {
                sums[m][n] = s.end_small(small[m][n], sums[m][n]);
            }
        }
    }
    sums
}
