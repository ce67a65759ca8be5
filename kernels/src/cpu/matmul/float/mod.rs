//! Products with floating-point weights, packed in panels ([`super::super::packed`]).
//!
//! [`arithmetic`] defines the order of summation of a leaf. Rows of `x` are read in place.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

pub(in crate::cpu) mod arithmetic;

use std::marker::PhantomData;

use super::super::packed::PANEL;
use super::super::rows::{Rows, Strided};
use super::super::simd::{Kernel, LANES, Simd};
use super::part::Part;
use super::tiles::{Prefetch, Registers, Tile};
use super::tree::Tree;
use arithmetic::Arithmetic;

/// Steps of columns between prefetches.
const STEPS_PER_PREFETCH: usize = 4;

/// Returns the register budget of the instruction set that runs it.
pub(super) struct RegistersForAll;

impl Kernel for RegistersForAll {
    type Output = Registers;

    fn run<S: Simd>(self, _: S) -> Registers {
        registers::<S>()
    }
}

/// Some rows of one matrix, for all rows of `x`.
pub(in crate::cpu) struct Product<'a, A> {
    pub(in crate::cpu) part: &'a Part<'a>,
    pub(in crate::cpu) arithmetic: PhantomData<A>,
}

impl<A: Arithmetic> Kernel for Product<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        all_tiles::<S, A>(s, self.part);
    }
}

/// Calls a kernel compiled for the tile's height and width.
macro_rules! for_size {
    ($simd:expr, $set:ty, $tile:expr, $kernel:ident<$arithmetic:ty> $fields:tt) => {
        for_size!(@all $simd, $set, $tile, $kernel, $arithmetic, $fields,
            1: 1 4, 2: 1 2 3 4, 3: 1 2 4, 4: 1 4, 5: 1 4, 6: 1 2 3 4, 7: 1 2 3, 8: 1 2 3,)
    };
    (@all $simd:expr, $set:ty, $tile:expr, $kernel:ident, $arithmetic:ty, $fields:tt, $($mr:literal: $($nr:literal)*,)*) => {
        match ($tile.height, $tile.width) {
            $($(($mr, $nr) if const { $crate::cpu::matmul::float::registers::<$set>().has($mr, $nr) } => {
                for_size!(@one $simd, $kernel, $arithmetic, $mr, $nr, $fields)
            })*)*
            _ => unreachable!("every tile height and width has an arm"),
        }
    };
    (@one $simd:expr, $kernel:ident, $arithmetic:ty, $mr:literal, $nr:literal, { $($fields:tt)* }) => {
        $simd.call($kernel::<$arithmetic, $mr, $nr> { $($fields)*, arithmetic: std::marker::PhantomData })
    };
}

pub(in crate::cpu) use for_size;

/// Register budget of an instruction set.
pub(in crate::cpu) const fn registers<S: Simd>() -> Registers {
    Registers::of_values(S::ACCUMULATORS)
}

/// Multiplies tile by tile.
#[inline(always)]
pub(in crate::cpu) fn all_tiles<S: Simd, A: Arithmetic>(s: S, part: &Part<'_>) {
    let Rows { values: x, stride } = A::rows(part.x);
    let (layout, weights) = (part.linear.weights.layout(), part.weights());
    let (panel_bytes, leaves) = (layout.panel_bytes(), layout.leaves);
    part.for_each_tile(const { registers::<S>() }, |tile| {
        let from = TileInputs {
            x: &x[(part.rows.start + tile.first) * stride..],
            stride,
            w: &weights[tile.panel * panel_bytes..],
            panel_bytes,
            apart: tile.apart * panel_bytes,
            prefetch: &tile.prefetch,
            leaves,
        };
        let (tile, from) = (&tile, &from);
        for_size!(s, S, tile, Block<A> { part, tile, from });
    });
}

/// The parts of both matrices that a tile multiplies.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct TileInputs<'a> {
    /// Rows of `x`, `stride` bytes apart.
    pub(in crate::cpu) x: &'a [u8],
    pub(in crate::cpu) stride: usize,
    /// Panels of weights, `apart` bytes apart.
    pub(in crate::cpu) w: &'a [u8],
    pub(in crate::cpu) panel_bytes: usize,
    pub(in crate::cpu) apart: usize,
    pub(in crate::cpu) prefetch: &'a Prefetch,
    /// Number of leaves of the sums.
    pub(in crate::cpu) leaves: usize,
}

/// A tile of `MR` rows of `x` by `NR` panels.
pub(in crate::cpu) struct Block<'a, A, const MR: usize, const NR: usize> {
    pub(in crate::cpu) part: &'a Part<'a>,
    pub(in crate::cpu) tile: &'a Tile,
    pub(in crate::cpu) from: &'a TileInputs<'a>,
    pub(in crate::cpu) arithmetic: PhantomData<A>,
}

impl<A: Arithmetic, const MR: usize, const NR: usize> Kernel for Block<'_, A, MR, NR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.part.prefetch_results::<S, MR, NR>(s, self.tile);
        let sums = self.from.sums::<S, A, MR, NR>(s);
        self.part.put_tile(s, self.tile, sums);
    }
}

impl TileInputs<'_> {
    #[inline(always)]
    fn sums<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(&self, s: S) -> [[S::V; NR]; MR] {
        let steps = self.panel_bytes / A::WEIGHT_BYTES;
        let apart = self.apart;
        assert!((MR - 1) * self.stride + steps * A::X_BYTES <= self.x.len(), "x contains all rows");
        assert!((NR - 1) * apart + self.panel_bytes <= self.w.len(), "the weights contain all panels");
        let (mut x, mut w) = (self.x.as_ptr(), self.w.as_ptr());
        let mut prefetch = self.prefetch.cursor(steps / STEPS_PER_PREFETCH);
        let steps = steps / self.leaves;
        let mut tree = Tree::<S, MR, NR>::new(self.leaves);
        loop {
            let mut sums = [[s.zero(); NR]; MR];
            for _ in 0..steps / STEPS_PER_PREFETCH {
                prefetch.issue::<S, NR>(s, w, apart, STEPS_PER_PREFETCH * A::WEIGHT_BYTES);
                for _ in 0..STEPS_PER_PREFETCH {
                    let (rows, panels) = (Strided { at: x, apart: self.stride }, Strided { at: w, apart });
                    // SAFETY: this many steps remain.
                    sums = unsafe { step_of::<S, A, MR, NR>(s, rows, panels, sums) };
                    (x, w) = (x.wrapping_add(A::X_BYTES), w.wrapping_add(A::WEIGHT_BYTES));
                }
            }
            for _ in 0..steps % STEPS_PER_PREFETCH {
                let (rows, panels) = (Strided { at: x, apart: self.stride }, Strided { at: w, apart });
                // SAFETY: this many steps remain.
                sums = unsafe { step_of::<S, A, MR, NR>(s, rows, panels, sums) };
                (x, w) = (x.wrapping_add(A::X_BYTES), w.wrapping_add(A::WEIGHT_BYTES));
            }
            if let Some(sums) = tree.put(s, sums) {
                return sums;
            }
        }
    }
}

/// Adds one step's products. Takes and returns the sums by value: behind a reference they would not stay in
/// registers.
///
/// # Safety
/// A step of all rows of `x` and of all panels is readable, at the given strides in bytes.
#[inline(always)]
pub(in crate::cpu) unsafe fn step_of<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(
    s: S,
    x: Strided<u8>,
    w: Strided<u8>,
    mut sums: [[S::V; NR]; MR],
) -> [[S::V; NR]; MR] {
    let (Strided { at: x, apart: stride }, Strided { at: w, apart }) = (x, w);
    for part in 0..A::PARTS {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut weights = [A::weights(s, w, part); NR];
            for n in 1..NR {
                weights[n] = A::weights(s, w.add(n * apart), part);
            }
            for m in 0..MR {
                let x = A::x(s, x.add(m * stride), part);
                for n in 0..NR {
                    sums[m][n] = A::add(s, x, weights[n], sums[m][n]);
                }
            }
        }
    }
    sums
}

const _: () = assert!(PANEL == LANES, "a panel's outputs are a vector");
