//! Weights that are floating-point numbers, packed in panels ([`super::super::packed`]).
//!
//! [`arithmetic`] says in which order products are summed. Rows of `x` are read where they lie.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

mod arithmetic;
mod folded;

use std::marker::PhantomData;

use super::super::packed::{Format, PANEL};
use super::super::simd::{Kernel, LANES, Simd};
use super::room::with_room;
use super::tiles::{Ahead, Registers, Tile};
use super::{Part, registers_for};
use arithmetic::{Arithmetic, Dot, F16, F32, OfPairs, Pairs, Wide};
use folded::{Block as FoldedBlock, Folded};

/// Steps of columns between two looks at what lies ahead.
const STRIDE: usize = 4;
/// Tiles of rows that each unfold the weights for themselves.
const FEW_TILES: usize = 2;

/// What this instruction set has room for.
pub(super) struct RegistersForAll;

impl Kernel for RegistersForAll {
    type Output = Registers;

    fn run<S: Simd>(self, _: S) -> Registers {
        registers::<S>()
    }
}

/// Some rows of one matrix, for all rows of `x`, activations in `f32`.
pub(super) struct Product<'a> {
    pub(super) part: &'a Part<'a>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.part.linear.weights.layout().format {
            Format::Bf16 => self.part.multiply::<S, Pairs>(s),
            Format::Bf16Folded => self.part.multiply_folded::<S, Pairs>(s),
            Format::F16 => self.part.multiply::<S, Wide<F16>>(s),
            Format::F32 => self.part.multiply::<S, Wide<F32>>(s),
            _ => unreachable!("integers are multiplied as such"),
        }
    }
}

/// Some rows of one bfloat16 matrix, for all rows of `x`, activations rounded to that format too.
pub(super) struct PairProduct<'a> {
    pub(super) part: &'a Part<'a>,
}

impl Kernel for PairProduct<'_> {
    type Output = ();
    const USES_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match (self.part.linear.weights.layout().format, S::HAS_DOT) {
            (Format::Bf16Folded, true) => self.part.multiply_folded::<S, Dot>(s),
            (Format::Bf16Folded, false) => self.part.multiply_folded::<S, Pairs>(s),
            (_, true) => self.part.multiply::<S, Dot>(s),
            (_, false) => self.part.multiply::<S, Pairs>(s),
        }
    }
}

/// Calls a kernel for the tile's height and width.
macro_rules! for_size {
    ($simd:expr, $set:ty, $tile:expr, $kernel:ident<$arithmetic:ty> $fields:tt) => {
        for_size!(@all $simd, $set, $tile, $kernel, $arithmetic, $fields,
            1: 1 4, 2: 1 2 3 4, 3: 1 2 4, 4: 1 4, 5: 1 4, 6: 1 2 3 4, 7: 1 2 3, 8: 1 2 3,)
    };
    (@all $simd:expr, $set:ty, $tile:expr, $kernel:ident, $arithmetic:ty, $fields:tt, $($mr:literal: $($nr:literal)*,)*) => {
        match ($tile.height, $tile.width) {
            $($(($mr, $nr) if const { registers::<$set>().has($mr, $nr) } => {
                for_size!(@one $simd, $kernel, $arithmetic, $mr, $nr, $fields)
            })*)*
            _ => unreachable!("every tile height and width has an arm"),
        }
    };
    (@one $simd:expr, $kernel:ident, $arithmetic:ty, $mr:literal, $nr:literal, { $($fields:tt)* }) => {
        $simd.call($kernel::<$arithmetic, $mr, $nr> { $($fields)*, arithmetic: PhantomData })
    };
}

/// What an instruction set has room for.
const fn registers<S: Simd>() -> Registers {
    registers_for(Format::Bf16, S::ACCUMULATORS)
}

impl Part<'_> {
    #[inline(always)]
    fn multiply<S: Simd, A: Arithmetic>(&self, s: S) {
        let (x, stride) = A::rows(self.x);
        let (panel_bytes, weights) = (self.linear.weights.layout().panel_bytes(), self.weights());
        self.for_each_tile(const { registers::<S>() }, |tile| {
            let from = Source {
                x: &x[(self.rows.start + tile.first) * stride..],
                stride,
                w: &weights[tile.panel * panel_bytes..],
                panel_bytes,
                apart: tile.apart * panel_bytes,
                ahead: &tile.ahead,
            };
            let (tile, from) = (&tile, &from);
            for_size!(s, S, tile, Block<A> { part: self, tile, from });
        });
    }

    /// The same with folded weights. The first rows' tile keeps what it unfolds for the others, where those are enough to pay
    /// for writing it.
    #[inline(always)]
    fn multiply_folded<S: Simd, A: OfPairs>(&self, s: S) {
        let (x, stride) = A::rows(self.x);
        let (registers, panel_bytes) =
            (const { registers::<S>() }, self.linear.weights.unfolded_panel_bytes());
        let is_kept = self.rows.len() > FEW_TILES * registers.highest();
        with_room(|room| {
            self.for_each_tile(registers, |tile| {
                let x = &x[(self.rows.start + tile.first) * stride..];
                let (to, is_there) = match is_kept {
                    true => self.place(room, &tile, panel_bytes),
                    false => (&mut [][..], false),
                };
                if is_there {
                    let (w, ahead) = (&*to, &tile.ahead);
                    let from = Source { x, stride, w, panel_bytes, apart: panel_bytes, ahead };
                    let (tile, from) = (&tile, &from);
                    return for_size!(s, S, tile, Block<A> { part: self, tile, from });
                }
                let (tile, from) = (&tile, &Folded::of(self, &tile));
                for_size!(s, S, tile, FoldedBlock<A> { part: self, tile, x, stride, from, to });
            });
        });
    }
}

/// What a tile reads.
#[derive(Clone, Copy)]
struct Source<'a> {
    /// Rows, `stride` bytes apart.
    x: &'a [u8],
    stride: usize,
    /// Panels, `apart` bytes apart.
    w: &'a [u8],
    panel_bytes: usize,
    apart: usize,
    ahead: &'a Ahead,
}

/// A tile of `MR` rows of `x` by `NR` panels.
struct Block<'a, A, const MR: usize, const NR: usize> {
    part: &'a Part<'a>,
    tile: &'a Tile,
    from: &'a Source<'a>,
    arithmetic: PhantomData<A>,
}

impl<A: Arithmetic, const MR: usize, const NR: usize> Kernel for Block<'_, A, MR, NR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.part.ask_tile::<S, MR, NR>(s, self.tile);
        let sums = self.from.sums::<S, A, MR, NR>(s);
        self.part.put_tile(s, self.tile, sums);
    }
}

impl Source<'_> {
    #[inline(always)]
    fn sums<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(&self, s: S) -> [[S::V; NR]; MR] {
        let steps = self.panel_bytes / A::WEIGHT_BYTES;
        let apart = self.apart;
        assert!((MR - 1) * self.stride + steps * A::X_BYTES <= self.x.len(), "x has its rows");
        assert!((NR - 1) * apart + self.panel_bytes <= self.w.len(), "there are as many panels");
        let mut sums = [[s.zero(); NR]; MR];
        let (mut x, mut w) = (self.x.as_ptr(), self.w.as_ptr());
        let looks = steps / STRIDE;
        let mut ahead = self.ahead.over(looks);
        for _ in 0..looks {
            ahead.ask::<S, NR>(s, w, apart, STRIDE * A::WEIGHT_BYTES);
            for _ in 0..STRIDE {
                // SAFETY: as many steps lie ahead.
                sums = unsafe { step_of::<S, A, MR, NR>(s, (x, self.stride), (w, apart), sums) };
                (x, w) = (x.wrapping_add(A::X_BYTES), w.wrapping_add(A::WEIGHT_BYTES));
            }
        }
        for _ in 0..steps % STRIDE {
            // SAFETY: as many steps lie ahead.
            sums = unsafe { step_of::<S, A, MR, NR>(s, (x, self.stride), (w, apart), sums) };
            (x, w) = (x.wrapping_add(A::X_BYTES), w.wrapping_add(A::WEIGHT_BYTES));
        }
        sums
    }
}

/// Adds one step's products. Sums come and go by value: they stay in registers, which a reference would not let them.
///
/// # Safety
/// A step of all rows of `x`, and of all panels, lies there: each so many bytes after the one before.
#[inline(always)]
unsafe fn step_of<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(
    s: S,
    (x, stride): (*const u8, usize),
    (w, apart): (*const u8, usize),
    mut sums: [[S::V; NR]; MR],
) -> [[S::V; NR]; MR] {
    for part in 0..A::PARTS {
        // SAFETY: by the contract.
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
