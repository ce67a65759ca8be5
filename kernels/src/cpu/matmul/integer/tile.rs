//! Inputs of a tile, and the inner loops that several formats share: rows of activations by panels of sixteen
//! outputs, with all sums in registers.
//!
//! Plain loops with constant bounds and no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use super::super::super::input::{CodeGroup, INPUT_GROUP, PARTS};
use super::super::super::packed::{Format, Layout, PANEL};
use super::super::super::rows::{Rows, Strided};
use super::super::super::simd::Simd;
use super::super::super::simd::integer::Integers;
use super::super::part::Part;
use super::super::tiles::{Prefetch, PrefetchCursor, Tile};

/// Bytes of four columns of 8-bit codes, or of eight columns of 4-bit codes, in a panel.
pub(in crate::cpu) const VECTOR: usize = 4 * PANEL;

/// Rows of `x` and panels of weights, each from the tile's first one on.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct IntegerTileInputs<'a> {
    /// Activations; rows are `stride` groups apart.
    pub(in crate::cpu) x: &'a [CodeGroup],
    pub(in crate::cpu) stride: usize,
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

    /// Sums over one leaf of `MR` rows and `NR` panels.
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
        let (layout, Rows { values: x, stride }) = (packed.layout(), x.codes());
        let (panel, row) = (part.first / PANEL + tile.panel, part.rows.start + tile.first);
        Self {
            x: &x[row * stride..],
            stride,
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
        assert!(self.layout.groups() * PARTS <= self.stride, "rows have all columns");
        assert!(self.x.len() >= rows * self.stride, "all rows");
        assert!(self.weights.len() >= last * self.layout.panel_bytes(), "codes of all panels");
        let scales = last * self.layout.panel_scales();
        assert!(self.scales.len() >= scales * self.layout.scale_bytes(), "scales of all panels");
        assert!(self.zeros.len() >= last * self.layout.panel_zeros(), "zero points of all panels");
    }

    /// Group `group` of row `m` of the inputs.
    ///
    /// # Safety
    /// The row and group exist.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn inputs(&self, m: usize, group: usize) -> &CodeGroup {
        // SAFETY: guaranteed by the caller.
        unsafe { &*self.x.as_ptr().add(m * self.stride + group) }
    }

    /// Codes of a group of inputs of row `m`, from column `at` of the group on.
    ///
    /// # Safety
    /// The row and group exist.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn codes(&self, m: usize, group: usize, at: usize) -> *const i8 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inputs(m, group).codes.as_ptr().wrapping_add(at) }
    }

    /// Adds the integer sums of a group of inputs, times its scales.
    ///
    /// # Safety
    /// The group exists, and [`IntegerTileInputs::check`] has passed for `MR` rows.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn add_inputs<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        group: usize,
        sums: [[S::Sums; NR]; MR],
        mut results: Floats<S, MR, NR>,
    ) -> Floats<S, MR, NR> {
        let f = s.floats();
        for m in 0..MR {
            // SAFETY: guaranteed by the caller.
            let scale = f.splat(unsafe { self.inputs(m, group) }.scale);
            for n in 0..NR {
                results[m][n] = f.fma(s.to_floats(sums[m][n]), scale, results[m][n]);
            }
        }
        results
    }

    /// A leaf's results times the outputs' scales.
    ///
    /// # Safety
    /// [`IntegerTileInputs::check`] has passed for `NR` panels, the leaf exists, and the format has one scale
    /// per output and leaf.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn times_scales<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        leaf: usize,
        mut results: Floats<S, MR, NR>,
    ) -> Floats<S, MR, NR> {
        let f = s.floats();
        for n in 0..NR {
            let scale = (n * self.apart * self.layout.leaves + leaf) * PANEL * 4;
            // SAFETY: guaranteed by the caller.
            let scale = unsafe { f.load(self.scales.as_ptr().add(scale).cast()) };
            for m in 0..MR {
                results[m][n] = f.mul(results[m][n], scale);
            }
        }
        results
    }
}

/// Adds the products of a group of inputs with 8-bit codes.
///
/// # Safety
/// A group of inputs of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
pub(in crate::cpu) unsafe fn eight_bits<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &IntegerTileInputs<'_>,
    group: usize,
    w: Strided<u8>,
    mut sums: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    let Strided { at: w, apart } = w;
    for step in 0..INPUT_GROUP / 4 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut codes = [s.load(w.add(step * VECTOR)); NR];
            for n in 0..NR {
                codes[n] = s.load(w.add(n * apart + step * VECTOR));
            }
            for m in 0..MR {
                let four = s.four(t.codes(m, group, step * 4));
                for n in 0..NR {
                    sums[m][n] = s.dot(sums[m][n], codes[n], four);
                }
            }
        }
    }
    sums
}

/// Adds the products of a group of inputs with 4-bit codes.
///
/// # Safety
/// A group of inputs of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
pub(in crate::cpu) unsafe fn four_bits<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &IntegerTileInputs<'_>,
    group: usize,
    w: Strided<u8>,
    mut small: [[S::Small; NR]; MR],
) -> [[S::Small; NR]; MR] {
    let Strided { at: w, apart } = w;
    for step in 0..INPUT_GROUP / 8 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut low = [s.load(w.add(step * VECTOR)); NR];
            let mut high = low;
            for n in 0..NR {
                let both = s.load(w.add(n * apart + step * VECTOR));
                (low[n], high[n]) = (s.low(both), s.high(both));
            }
            for m in 0..MR {
                let four = s.four(t.codes(m, group, step * 8));
                for n in 0..NR {
                    small[m][n] = s.dot_small(small[m][n], low[n], four);
                }
                let four = s.four(t.codes(m, group, step * 8 + 4));
                for n in 0..NR {
                    small[m][n] = s.dot_small(small[m][n], high[n], four);
                }
            }
        }
    }
    small
}

/// Adds the products of a group of codes of 4 or 8 bits, without the weights' scales. `bits` must be a
/// constant. `zeros` are the panels' zero points; `None` = [`ZERO`](super::super::super::packed::ZERO).
///
/// # Safety
/// [`IntegerTileInputs::check`] has passed for `MR` rows, and a group of `NR` panels of `w` is readable.
#[inline(always)]
pub(in crate::cpu) unsafe fn add_group<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    bits: usize,
    t: &IntegerTileInputs<'_>,
    group: usize,
    w: Strided<u8>,
    zeros: Option<&[S::Sums; NR]>,
    mut results: Floats<S, MR, NR>,
) -> Floats<S, MR, NR> {
    for part in 0..PARTS {
        let group = group * PARTS + part;
        let mut sums = [[s.splat(0); NR]; MR];
        // SAFETY: guaranteed by the caller.
        unsafe {
            for m in 0..MR {
                let inputs = t.inputs(m, group);
                match zeros {
                    None => sums[m] = [s.splat(inputs.offset); NR],
                    Some(zeros) => {
                        for n in 0..NR {
                            sums[m][n] = s.minus_times(zeros[n], inputs.sum);
                        }
                    }
                }
            }
            let w = Strided { at: w.at.add(part * INPUT_GROUP * PANEL * bits / 8), ..w };
            sums = add_part::<S, MR, NR>(s, bits, t, group, w, sums);
            results = t.add_inputs::<S, MR, NR>(s, group, sums, results);
        }
    }
    results
}

/// Adds the products of a group of inputs with codes of 4 or 8 bits. `bits` must be a constant.
///
/// # Safety
/// A group of inputs of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
pub(in crate::cpu) unsafe fn add_part<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    bits: usize,
    t: &IntegerTileInputs<'_>,
    group: usize,
    w: Strided<u8>,
    mut sums: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if bits == 8 {
            return eight_bits::<S, MR, NR>(s, t, group, w, sums);
        }
        let mut small = [[s.begin_small(sums[0][0]); NR]; MR];
        for m in 0..MR {
            for n in 0..NR {
                small[m][n] = s.begin_small(sums[m][n]);
            }
        }
        small = four_bits::<S, MR, NR>(s, t, group, w, small);
        for m in 0..MR {
            for n in 0..NR {
                sums[m][n] = s.end_small(small[m][n], sums[m][n]);
            }
        }
    }
    sums
}
