//! Products of packed small-integer weights ([`super::super::packed`]) with activations that are also codes.
//!
//! The products `(code - zero) * activation code` are summed exactly, as integers, over each group of
//! [`INPUT_GROUP`](super::super::input::INPUT_GROUP) columns, whose activations share a scale. Everything
//! else is f32, in ascending order of columns, by fused multiply-add. A span has groups whose weights share
//! a scale:
//!
//! ```text
//! span = fma(sum of a group, scale of its activations, span)     from zero
//! leaf = fma(span, scale of its weights, leaf)                   from zero
//! leaf = span * scale of its weights                             if an output has one scale per leaf
//! ```
//!
//! [Leaves](crate::leaves) are joined as a tree.
//!
//! Zero points cost nothing in the inner loop: a sum starts at `-zero * sum of the activations' codes`.

pub(in crate::cpu) mod tile;

use std::marker::PhantomData;

use super::super::packed::{Format, PANEL};
use super::super::simd::LANES;
use super::super::simd::integer::{IntegerKernel, Integers};
use super::part::Part;
use super::tiles::{Registers, Tile};
use super::tree::Tree;
use tile::{IntegerTileInputs, Kind};

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
        let layout = self.from.layout;
        let mut prefetch = self.from.prefetch.cursor(layout.groups());
        let mut tree = Tree::<S::Floats, MR, NR>::new(layout.leaves);
        let sums = loop {
            let leaf = tree.leaf();
            // SAFETY: checked above; the tree counts the layout's leaves.
            let sums = unsafe { K::sums::<S, MR, NR>(s, self.from, leaf, &mut prefetch) };
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
