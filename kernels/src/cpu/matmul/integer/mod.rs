//! Products of packed small-integer weights ([`super::super::packed`]) with activations that are also codes.
//!
//! The products `(code - zero) * activation code` are summed exactly, as integers, over a group of 32
//! columns, or over up to [`SEGMENT`] columns of a [leaf](crate::leaves) if an output has one scale per leaf.
//! In ascending order of groups, each sum, as f32, times its scale is added to the leaf's result by fused
//! multiply-add. The result is multiplied by the scale of the row's leaf, and leaves are joined as a tree.
//!
//! Zero points cost nothing in the inner loop: a sum starts at `-zero * sum of the activations' codes`.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

pub(in crate::cpu) mod tile;

use std::marker::PhantomData;

use super::super::packed::{Format, PANEL};
use super::super::simd::integer::{IntegerKernel, Integers};
use super::super::simd::{LANES, Simd};
use super::part::Part;
use super::tiles::{Registers, Tile};
use super::tree::Tree;
use tile::{IntegerTileInputs, Kind};

/// Columns whose products fit 32 bits when summed: `255 * 127 * SEGMENT < 2^31`.
pub(in crate::cpu) const SEGMENT: usize = 32 << 10;

/// Returns the register budget of the instruction set that runs it, for weights in this format.
pub(super) struct RegistersFor(pub(super) Format);

impl IntegerKernel for RegistersFor {
    type Output = Registers;

    fn run<S: Integers>(self, _: S) -> Registers {
        registers::<S>(self.0)
    }
}

/// Some rows of one matrix, for all rows of `x`.
pub(in crate::cpu) struct Product<'a, K> {
    pub(in crate::cpu) part: &'a Part<'a>,
    pub(in crate::cpu) kind: PhantomData<K>,
}

impl<K: Kind> IntegerKernel for Product<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        all_tiles::<S, K>(s, self.part);
    }
}

/// Multiplies tile by tile.
#[inline(always)]
pub(in crate::cpu) fn all_tiles<S: Integers, K: Kind>(s: S, part: &Part<'_>) {
    part.for_each_tile(const { registers::<S>(K::FORMAT) }, |tile| {
        one_tile::<S, K>(s, part, &tile, &IntegerTileInputs::of(part, &tile));
    });
}

/// Multiplies a tile in a separate function.
#[inline(always)]
pub(in crate::cpu) fn one_tile<S: Integers, K: Kind>(
    s: S,
    part: &Part<'_>,
    tile: &Tile,
    from: &IntegerTileInputs<'_>,
) {
    macro_rules! sizes {
        ($($mr:literal: $($nr:literal)*,)*) => {
            match (tile.height, tile.width) {
                $($(($mr, $nr) if const { registers::<S>(K::FORMAT).has($mr, $nr) } => {
                    s.call(Block::<K, $mr, $nr> { part, tile, from, kind: PhantomData });
                })*)*
                _ => unreachable!("every tile height and width has an arm"),
            }
        };
    }
    sizes!(
        1: 1 2 4, 2: 1 2 4, 3: 1 2 3 4, 4: 1 2 3 4, 5: 1 2 4, 6: 1 2 3 4, 7: 1 2 3, 8: 1 2 3,
    );
}

/// A tile of `MR` rows of `x` by `NR` panels.
struct Block<'a, K, const MR: usize, const NR: usize> {
    part: &'a Part<'a>,
    tile: &'a Tile,
    from: &'a IntegerTileInputs<'a>,
    kind: PhantomData<K>,
}

impl<K: Kind, const MR: usize, const NR: usize> IntegerKernel for Block<'_, K, MR, NR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        let (part, f) = (self.part, s.floats());
        part.prefetch_results::<S::Floats, MR, NR>(f, self.tile);
        self.from.check(MR, NR);
        let (layout, (_, scales, _)) = (self.from.layout, part.x.codes());
        let scales = &scales[(part.rows.start + self.tile.first) * layout.leaves..];
        let mut prefetch = self.from.prefetch.cursor(layout.groups());
        let mut tree = Tree::<S::Floats, MR, NR>::new(layout.leaves);
        let sums = loop {
            let leaf = tree.leaf();
            // SAFETY: checked above; the tree counts the layout's leaves.
            let mut sums = unsafe { K::sums::<S, MR, NR>(s, self.from, leaf, &mut prefetch) };
            for m in 0..MR {
                let scale = f.splat(scales[m * layout.leaves + leaf]);
                for n in 0..NR {
                    sums[m][n] = f.mul(sums[m][n], scale);
                }
            }
            if let Some(sums) = tree.put(f, sums) {
                break sums;
            }
        };
        part.put_tile(f, self.tile, sums);
    }
}

/// Register budget of an instruction set.
pub(in crate::cpu) const fn registers<S: Integers>(format: Format) -> Registers {
    Registers::of(format, S::ACCUMULATORS, S::HAS_DOT)
}

const _: () = assert!(PANEL == LANES, "a panel's outputs are a vector");

#[cfg(test)]
mod tests;
