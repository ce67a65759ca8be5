//! Weights that are small integers, packed ([`super::super::packed`]), times activations that are codes too.
//!
//! The products of a group of 32 columns, or of up to [`SEGMENT`] columns where an output has one scale, are summed exactly,
//! as integers: `sum of (code - zero) * activation code`. Then, group by group in ascending order, that sum, as f32, times
//! the scale is added to the result by fused multiply-add; at the end the result is multiplied by the row's scale.
//!
//! Zero points cost nothing in the inner loop: a sum starts at `-zero * sum of the activations' codes`.
//!
//! [`Format::Int4`] is [`Format::Int8`] with codes kept in 4 bits, and gives the same integers either way: for few rows of `x` a group's sum
//! of 4-bit codes is multiplied, for some the codes are as each tile reads them, for many once for all tiles.

mod tile;

use std::marker::PhantomData;

use super::super::packed::{Format, Layout, PANEL};
use super::super::simd::integer::{IntegerKernel, Integers};
use super::super::simd::{LANES, Simd};
use super::room::with_room;
use super::tiles::{Registers, Tile};
use super::{Part, registers_for};
use tile::{FourBitsZero, Grouped, GroupedBytes, Kind, PerOutput, Source, Stepped};

/// Columns whose products fit 32 bits together: `255 * 127 * SEGMENT < 2^31`.
pub(super) const SEGMENT: usize = 32 << 10;

/// What this instruction set has room for with weights of that format.
pub(super) struct RegistersFor(pub(super) Format);

impl IntegerKernel for RegistersFor {
    type Output = Registers;

    fn run<S: Integers>(self, _: S) -> Registers {
        registers::<S>(self.0)
    }
}

/// Some rows of one matrix, for all rows of `x`.
pub(super) struct Product<'a> {
    pub(super) part: &'a Part<'a>,
}

impl IntegerKernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        match self.part.linear.weights.layout().format {
            Format::Int8 => self.all_tiles::<S, PerOutput>(simd),
            Format::Int8Group => self.all_tiles::<S, Grouped<GroupedBytes>>(simd),
            Format::Int4
                if S::HAS_DOT && self.part.rows.len() > const { registers::<S>(Format::Int4).highest() } =>
            {
                self.widened_tiles(simd)
            }
            Format::Int4 => self.all_tiles::<S, Stepped>(simd),
            Format::Int4Zero => self.all_tiles::<S, Grouped<FourBitsZero>>(simd),
            Format::Bf16 | Format::Bf16Folded | Format::F16 | Format::F32 => {
                unreachable!("floats are multiplied as such")
            }
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn all_tiles<S: Integers, K: Kind>(&self, s: S) {
        self.part.for_each_tile(const { registers::<S>(K::FORMAT) }, |tile| {
            self.one_tile::<S, K>(s, &tile, &self.from(&tile));
        });
    }

    /// Panels of 4-bit codes that several tiles of rows meet: they become 8 bits once, for all of those.
    #[inline(always)]
    fn widened_tiles<S: Integers>(&self, s: S) {
        let layout = Layout { format: Format::Int8, ..self.part.linear.weights.layout() };
        with_room(|room| {
            self.part.for_each_tile(const { registers::<S>(Format::Int4) }, |tile| {
                let from = self.from(&tile);
                let (weights, is_there) = self.part.place(room, &tile, layout.panel_bytes());
                if !is_there {
                    s.call(Widen { from, panels: tile.width, to: weights });
                }
                self.one_tile::<S, PerOutput>(s, &tile, &Source { weights, layout, ..from });
            });
        });
    }

    #[inline(always)]
    fn one_tile<S: Integers, K: Kind>(&self, s: S, tile: &Tile, from: &Source<'_>) {
        macro_rules! sizes {
            ($($mr:literal: $($nr:literal)*,)*) => {
                match (tile.height, tile.width) {
                    $($(($mr, $nr) if const { registers::<S>(K::FORMAT).has($mr, $nr) } => {
                        s.call(Block::<K, $mr, $nr> { product: self, tile, from, kind: PhantomData });
                    })*)*
                    _ => unreachable!("every tile height and width has an arm"),
                }
            };
        }
        sizes!(
            1: 1 2 4, 2: 1 2 4, 3: 1 2 3 4, 4: 1 2 3 4, 5: 1 2 4, 6: 1 2 3 4, 7: 1 2 3, 8: 1 2 3,
        );
    }

    /// What a tile reads.
    #[inline(always)]
    fn from<'t>(&'t self, tile: &'t Tile) -> Source<'t> {
        let (x, packed) = (self.part.x, self.part.linear.weights);
        let (layout, (codes, _, sums)) = (packed.layout(), x.codes());
        let (panel, row) = (self.part.first / PANEL + tile.panel, self.part.rows.start + tile.first);
        Source {
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
}

/// A tile of `MR` rows of `x` by `NR` panels.
struct Block<'a, K, const MR: usize, const NR: usize> {
    product: &'a Product<'a>,
    tile: &'a Tile,
    from: &'a Source<'a>,
    kind: PhantomData<K>,
}

impl<K: Kind, const MR: usize, const NR: usize> IntegerKernel for Block<'_, K, MR, NR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let (part, f) = (self.product.part, s.floats());
        part.ask_tile::<S::Floats, MR, NR>(f, self.tile);
        // SAFETY: the rows and panels from there on are as many.
        let mut sums = unsafe { K::sums::<S, MR, NR>(s, self.from) };
        let (_, scales, _) = part.x.codes();
        for (m, sums) in sums.iter_mut().enumerate() {
            let scale = f.splat(scales[part.rows.start + self.tile.first + m]);
            for sum in sums {
                *sum = f.mul(*sum, scale);
            }
        }
        part.put_tile(f, self.tile, sums);
    }
}

/// A tile's panels of 4-bit codes as [`Format::Int8`] has them.
struct Widen<'a> {
    from: Source<'a>,
    panels: usize,
    to: &'a mut [u8],
}

impl IntegerKernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        self.from.widen(s, self.panels, self.to);
    }
}

/// What an instruction set has room for: sums of 4-bit codes stand beside the others where they are multiplied afterwards.
const fn registers<S: Integers>(format: Format) -> Registers {
    let is_apart = matches!(format, Format::Int4) && !S::HAS_DOT;
    registers_for(format, if is_apart { S::ACCUMULATORS / 2 } else { S::ACCUMULATORS })
}

const _: () = assert!(PANEL == LANES, "a panel's outputs are a vector");

#[cfg(test)]
mod tests;
