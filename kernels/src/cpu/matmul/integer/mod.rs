//! Weights that are small integers, packed ([`super::super::packed`]), times activations that are codes too.
//!
//! The products of a group of 32 columns, or of up to [`SEGMENT`] columns where an output has one scale, are summed exactly,
//! as integers: `sum of (code - zero) * activation code`. Then, group by group in ascending order, that sum, as f32, times
//! the scale is added to the result by fused multiply-add; at the end the result is multiplied by the row's scale.
//!
//! Zero points cost nothing in the inner loop: a sum starts at `-zero * sum of the activations' codes`.

mod tile;

use std::marker::PhantomData;

use super::super::packed::{Format, PANEL, Packed};
use super::super::prefetch;
use super::super::simd::integer::{IntegerKernel, Integers};
use super::super::simd::{LANES, Simd};
use super::{Part, tile_heights};
use tile::{FourBits, FourBitsZero, Grouped, GroupedBytes, Kind, PerOutput, Tile};

/// Columns whose products fit 32 bits together: `255 * 127 * SEGMENT < 2^31`.
pub(super) const SEGMENT: usize = 32 << 10;
/// Panels that are read side by side: several long streams come from memory faster than one.
const MOST_STREAMS: usize = 4;

/// Some rows of one matrix, for all rows of `x`.
pub(super) struct Product<'a> {
    pub(super) part: &'a Part<'a>,
    pub(super) packed: &'a Packed,
}

impl IntegerKernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        match self.packed.layout().format {
            Format::Int8 => self.all_tiles::<S, PerOutput>(simd),
            Format::Int8Group => self.all_tiles::<S, Grouped<GroupedBytes>>(simd),
            Format::Int4 => self.all_tiles::<S, Grouped<FourBits>>(simd),
            Format::Int4Zero => self.all_tiles::<S, Grouped<FourBitsZero>>(simd),
        }
    }
}

/// Sums that the widest register file holds; others do with any number of rows.
const MOST_ACCUMULATORS: usize = 24;

/// Rows of a task are a multiple of this: the panels of a tile, so that none are left over to be read one by one.
pub(super) fn row_multiple(m: usize, format: Format) -> usize {
    let registers = if format.has_groups() { 2 } else { 1 };
    let tiles = m.div_ceil(tallest(MOST_ACCUMULATORS, registers)).max(1);
    widest(MOST_ACCUMULATORS / registers, m.div_ceil(tiles).max(1)) * PANEL
}

/// Panels a tile of `height` rows takes at once, with `budget` sums in registers.
const fn widest(budget: usize, height: usize) -> usize {
    let fitting = budget / height;
    if fitting > MOST_STREAMS {
        MOST_STREAMS
    } else if fitting == 0 {
        1
    } else {
        fitting
    }
}

/// Rows of a tile at most: two panels beside each other, where registers are many.
const fn tallest(accumulators: usize, registers: usize) -> usize {
    if accumulators == MOST_ACCUMULATORS { accumulators / 2 / registers } else { accumulators / 2 }
}

/// Whether an instruction set has tiles of that size: what it does not use is not compiled for it.
const fn is_used<S: Integers, K: Kind>(height: usize, width: usize) -> bool {
    height <= tallest(S::ACCUMULATORS, K::REGISTERS)
        && (width == 1 || width == widest(S::ACCUMULATORS / K::REGISTERS, height))
}

impl Product<'_> {
    /// All tiles: `x` in tiles of nearly equal height, and for each of them the panels, several at once, then single ones.
    #[inline(always)]
    fn all_tiles<S: Integers, K: Kind>(&self, s: S) {
        let heights = tile_heights(self.part.x.rows(), tallest(S::ACCUMULATORS, K::REGISTERS));
        assert!(self.part.first.is_multiple_of(PANEL), "tasks start at a panel");
        let panels = self.part.count.div_ceil(PANEL);
        let mut m = 0;
        for (tile, height) in heights.enumerate() {
            let widest = widest(S::ACCUMULATORS / K::REGISTERS, height);
            // Each of a tile's panels walks through its own part of the task's.
            let full = panels / widest;
            for i in 0..full + panels % widest {
                let (width, n, apart) =
                    if i < full { (widest, i, full) } else { (1, full * (widest - 1) + i, 0) };
                let t = self.tile(m, n, apart, if tile == 0 { prefetch::distance() } else { 0 });
                macro_rules! sizes {
                    ($($mr:literal: $($nr:literal)*,)*) => {
                        match (height, width) {
                            $($(($mr, $nr) if const { is_used::<S, K>($mr, $nr) } => {
                                let kind = PhantomData::<K>;
                                s.call(Block::<K, $mr, $nr> { product: self, t, m, n, apart, kind });
                            })*)*
                            _ => unreachable!("every tile height and width has an arm"),
                        }
                    };
                }
                sizes!(
                    1: 1 2 4, 2: 1 2 4, 3: 1 2 4, 4: 1 2 3 4, 5: 1 2 4, 6: 1 2 4,
                    7: 1 3, 8: 1 3, 9: 1 2, 10: 1 2, 11: 1 2, 12: 1 2,
                );
            }
            m += height;
        }
    }

    /// The tile of rows from `m` on and of every `apart`-th panel from the `n`-th of the task on.
    #[inline(always)]
    fn tile(&self, m: usize, n: usize, apart: usize, ahead: usize) -> Tile<'_> {
        let (layout, x) = (self.packed.layout(), self.part.x);
        let (codes, _, sums) = x.codes();
        let panel = self.part.first / PANEL + n;
        Tile {
            codes: &codes[m * x.code_stride()..],
            sums: &sums[m * x.sum_stride()..],
            code_stride: x.code_stride(),
            sum_stride: x.sum_stride(),
            weights: &self.packed.codes()[panel * layout.panel_bytes()..],
            scales: &self.packed.scales()[panel * layout.panel_scales() * layout.scale_bytes()..],
            zeros: self.packed.zeros().get(panel * layout.panel_scales()..).unwrap_or_default(),
            layout,
            apart,
            ahead,
        }
    }
}

/// `MR` rows of `x`, from `m` on, by `NR` panels: every `apart`-th from the task's `n`-th on.
struct Block<'a, K, const MR: usize, const NR: usize> {
    product: &'a Product<'a>,
    t: Tile<'a>,
    m: usize,
    n: usize,
    apart: usize,
    kind: PhantomData<K>,
}

impl<K: Kind, const MR: usize, const NR: usize> IntegerKernel for Block<'_, K, MR, NR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        // SAFETY: the rows and panels from there on are as many.
        let sums = unsafe { K::sums::<S, MR, NR>(s, &self.t) };
        let (part, f) = (self.product.part, s.floats());
        let (_, scales, _) = part.x.codes();
        for (i, sums) in sums.into_iter().enumerate() {
            // SAFETY: one at a time.
            let y = unsafe { part.y(self.m + i) };
            for (j, sum) in sums.into_iter().enumerate() {
                let first = (self.n + j * self.apart) * PANEL;
                let sum = f.mul(sum, f.splat(scales[self.m + i]));
                part.put_lanes(f, &mut y[first..], first, sum);
            }
        }
    }
}

const _: () = assert!(PANEL == LANES, "a panel's outputs are a vector");

#[cfg(test)]
mod tests;
