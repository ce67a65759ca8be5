//! A tile unpacks a unit of its panels, multiplies it and goes on to the next one. For many rows, the first
//! tile keeps what it unpacks for the others. Sums are those of the same weights in bfloat16.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;

use super::super::bf16::{Tiled, multiply_pairs};
use super::{PANEL, Patches, TABLE, UNFOLDED_BYTES, UNIT_BYTES, tables};
use crate::cpu::matmul::float::arithmetic::OfPairs;
use crate::cpu::matmul::float::{Block, TileInputs, for_size, registers, step_of};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::{MAX_STREAMS, Prefetch, Tile};
use crate::cpu::matmul::tree::Tree;
use crate::cpu::matmul::unpacked::with_unpack_buffers;
use crate::cpu::rows::{Rows, Strided};
use crate::cpu::simd::integer::IntegerIsa;
use crate::cpu::simd::{Isa, Kernel, Simd};

/// Up to this many tiles of rows, each tile unpacks the weights again.
const MAX_TILES_WITHOUT_BUFFER: usize = 2;

pub(in super::super) fn multiply(part: &Part<'_>, isa: Isa, _: IntegerIsa) {
    multiply_pairs::<Unfolding>(part, isa);
}

struct Unfolding;

impl Tiled for Unfolding {
    /// The first tile of rows keeps the unpacked panels for the others, if there are enough of them to pay
    /// for the stores.
    #[inline(always)]
    fn all_tiles<S: Simd, A: OfPairs>(s: S, part: &Part<'_>) {
        let Rows { values: x, stride } = A::rows(part.x);
        let (registers, panel_bytes) = (
            const { registers::<S>() },
            part.linear.weights.layout().panel_bytes() / UNIT_BYTES * UNFOLDED_BYTES,
        );
        let leaves = part.linear.weights.layout().leaves;
        let is_kept = part.rows.len() > MAX_TILES_WITHOUT_BUFFER * registers.highest();
        with_unpack_buffers(|buffers| {
            part.for_each_tile(registers, |tile| {
                let x = &x[(part.rows.start + tile.first) * stride..];
                let (to, is_filled) =
                    if is_kept { part.buffer(buffers, &tile, panel_bytes) } else { (&mut [][..], false) };
                if is_filled {
                    let (w, prefetch) = (&*to, &tile.prefetch);
                    let from = TileInputs { x, stride, w, panel_bytes, apart: panel_bytes, prefetch, leaves };
                    let (tile, from) = (&tile, &from);
                    return for_size!(s, S, tile, Block<A> { part, tile, from });
                }
                let (tile, from) = (&tile, &Folded::of(part, &tile));
                for_size!(s, S, tile, FoldedBlock<A> { part, tile, x, stride, from, to });
            });
        });
    }
}

/// A unit as in [`Format::BF16`](super::Format::BF16).
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Unfolded([u8; UNFOLDED_BYTES]);

/// Some panels, `apart` panels from one to the next.
#[derive(Clone, Copy)]
struct Folded<'a> {
    w: &'a [u8],
    panel_bytes: usize,
    tables: &'a [u8],
    /// Patches of each panel of the tile.
    patches: [Option<Patches<'a>>; MAX_STREAMS],
    apart: usize,
    prefetch: &'a Prefetch,
    /// Number of leaves of the sums.
    leaves: usize,
}

impl<'a> Folded<'a> {
    /// The panels of `tile`.
    fn of(part: &'a Part<'_>, tile: &'a Tile) -> Self {
        let (weights, first) = (part.linear.weights, part.first / PANEL + tile.panel);
        let panel_bytes = weights.layout().panel_bytes();
        let mut patches = [None; MAX_STREAMS];
        for (n, patches) in patches[..tile.width].iter_mut().enumerate() {
            *patches = Some(Patches::of(weights.bytes(), &weights.layout(), first + n * tile.apart));
        }
        Self {
            w: &weights.values()[first * panel_bytes..],
            panel_bytes,
            tables: &tables(weights)[first * TABLE..],
            patches,
            apart: tile.apart,
            prefetch: &tile.prefetch,
            leaves: weights.layout().leaves,
        }
    }
}

/// A tile of `MR` rows of `x` by `NR` panels, unpacked while they are multiplied.
struct FoldedBlock<'a, A, const MR: usize, const NR: usize> {
    part: &'a Part<'a>,
    tile: &'a Tile,
    /// Rows of `x`, `stride` bytes apart.
    x: &'a [u8],
    stride: usize,
    from: &'a Folded<'a>,
    /// Buffer in which the panels are kept for other rows, as bfloat16, one after another; empty if they are
    /// not kept.
    to: &'a mut [u8],
    arithmetic: PhantomData<A>,
}

impl<A: OfPairs, const MR: usize, const NR: usize> Kernel for FoldedBlock<'_, A, MR, NR> {
    type Output = ();
    const USES_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.part.prefetch_results::<S, MR, NR>(s, self.tile);
        let to = std::mem::take(&mut self.to);
        let sums = if !to.is_empty() {
            let apart = self.units() * UNFOLDED_BYTES;
            assert!(to.len() >= NR * apart, "the buffer holds all panels");
            self.through_memory(s, to.as_mut_ptr(), apart, UNFOLDED_BYTES)
        } else if const { fits_registers(S::ACCUMULATORS, MR, NR) } {
            self.in_registers(s)
        } else {
            let mut unpacked = [Unfolded([0; UNFOLDED_BYTES]); NR];
            self.through_memory(s, unpacked.as_mut_ptr().cast(), size_of::<Unfolded>(), 0)
        };
        self.part.put_tile(s, self.tile, sums);
    }
}

/// Whether a tile's sums and one unit of each panel fit the registers. If not, the compiler would choose what
/// to spill.
const fn fits_registers(accumulators: usize, rows: usize, panels: usize) -> bool {
    /// Registers besides those of the sums.
    const OTHERS: usize = 8;
    rows * panels + panels * UNFOLDED_BYTES / VECTOR <= accumulators + OTHERS
}

impl<A: OfPairs, const MR: usize, const NR: usize> FoldedBlock<'_, A, MR, NR> {
    /// Steps of columns in a unit.
    const STEPS: usize = UNFOLDED_BYTES / A::WEIGHT_BYTES;

    /// Units per panel.
    fn units(&self) -> usize {
        self.from.panel_bytes / UNIT_BYTES
    }

    /// Asserts that all inputs contain what the tile reads.
    #[inline(always)]
    fn check(&self) {
        let from = self.from;
        let x_bytes = self.units() * Self::STEPS * A::X_BYTES;
        assert!((MR - 1) * self.stride + x_bytes <= self.x.len(), "x contains all rows");
        assert!(
            ((NR - 1) * from.apart + 1) * from.panel_bytes <= from.w.len(),
            "the weights contain all panels"
        );
        assert!(((NR - 1) * from.apart + 1) * TABLE <= from.tables.len(), "the tables contain all panels");
    }

    #[inline(always)]
    fn in_registers<S: Simd>(&self, s: S) -> [[S::V; NR]; MR] {
        self.check();
        let (units, mut tree) = (self.units() / self.from.leaves, Tree::<S, MR, NR>::new(self.from.leaves));
        let (from, mut patches) = (self.from, TilePatches::<NR>::of(self.from));
        let (apart, tables_apart) = (from.apart * from.panel_bytes, from.apart * TABLE);
        let (mut x, mut w, tables) = (self.x.as_ptr(), from.w.as_ptr(), from.tables.as_ptr());
        let mut prefetch = from.prefetch.cursor(self.units());
        loop {
            let mut sums = [[s.zero(); NR]; MR];
            for unit in tree.leaf() * units..(tree.leaf() + 1) * units {
                prefetch.issue::<S, NR>(s, w, apart, UNIT_BYTES);
                // SAFETY: checked above; all rows and panels have this unit.
                unsafe {
                    let mut weights = [s.unfold(w, tables); NR];
                    for n in 0..NR {
                        weights[n] = s.unfold(w.add(n * apart), tables.add(n * tables_apart));
                        if patches.next[n] == unit {
                            let mut unpacked = Unfolded([0; UNFOLDED_BYTES]);
                            store(s, weights[n], unpacked.0.as_mut_ptr());
                            patches.apply(n, unit, &mut unpacked.0);
                            for vector in 0..4 {
                                weights[n][vector] = s.load_pairs(unpacked.0.as_ptr().add(vector * VECTOR));
                            }
                        }
                    }
                    for step in 0..Self::STEPS {
                        for part in 0..A::PARTS {
                            for m in 0..MR {
                                let x = A::x(s, x.add(m * self.stride + step * A::X_BYTES), part);
                                for n in 0..NR {
                                    let weights = A::of_pairs(s, weights[n][step], part);
                                    sums[m][n] = A::add(s, x, weights, sums[m][n]);
                                }
                            }
                        }
                    }
                }
                (x, w) = (x.wrapping_add(Self::STEPS * A::X_BYTES), w.wrapping_add(UNIT_BYTES));
            }
            if let Some(sums) = tree.put(s, sums) {
                return sums;
            }
        }
    }

    /// Writes units to memory, `to_apart` bytes from panel to panel and `further` from unit to unit, and
    /// multiplies from there.
    #[inline(always)]
    fn through_memory<S: Simd>(
        &self,
        s: S,
        mut to: *mut u8,
        to_apart: usize,
        further: usize,
    ) -> [[S::V; NR]; MR] {
        self.check();
        let (units, mut tree) = (self.units() / self.from.leaves, Tree::<S, MR, NR>::new(self.from.leaves));
        let (from, mut patches) = (self.from, TilePatches::<NR>::of(self.from));
        let (apart, tables_apart) = (from.apart * from.panel_bytes, from.apart * TABLE);
        let (mut x, mut w, tables) = (self.x.as_ptr(), from.w.as_ptr(), from.tables.as_ptr());
        let mut prefetch = from.prefetch.cursor(self.units());
        loop {
            let mut sums = [[s.zero(); NR]; MR];
            for unit in tree.leaf() * units..(tree.leaf() + 1) * units {
                prefetch.issue::<S, NR>(s, w, apart, UNIT_BYTES);
                // SAFETY: checked above; all rows and panels have this unit, and the buffer has space for it.
                unsafe {
                    for n in 0..NR {
                        let to = to.add(n * to_apart);
                        store(s, s.unfold(w.add(n * apart), tables.add(n * tables_apart)), to);
                        if patches.next[n] == unit {
                            patches.apply(n, unit, &mut *to.cast());
                        }
                    }
                    for step in 0..Self::STEPS {
                        let rows = Strided { at: x, apart: self.stride };
                        let unpacked: *const u8 = to.add(step * A::WEIGHT_BYTES);
                        let panels = Strided { at: unpacked, apart: to_apart };
                        sums = step_of::<S, A, MR, NR>(s, rows, panels, sums);
                        x = x.wrapping_add(A::X_BYTES);
                    }
                }
                (w, to) = (w.wrapping_add(UNIT_BYTES), to.wrapping_add(further));
            }
            if let Some(sums) = tree.put(s, sums) {
                return sums;
            }
        }
    }
}

/// Bytes in a vector of pairs.
const VECTOR: usize = UNFOLDED_BYTES / 4;

/// Stores a unit as bfloat16.
///
/// # Safety
/// `to` is writable for [`UNFOLDED_BYTES`].
#[inline(always)]
unsafe fn store<S: Simd>(s: S, unit: [S::Pairs; 4], to: *mut u8) {
    for vector in 0..4 {
        // SAFETY: guaranteed by the caller.
        unsafe { s.store_pairs(unit[vector], to.add(vector * VECTOR)) };
    }
}

/// The remaining patches of a tile's panels.
struct TilePatches<'a, const NR: usize> {
    patches: [Option<Patches<'a>>; MAX_STREAMS],
    /// The unit with each panel's next patch.
    next: [usize; NR],
}

impl<'a, const NR: usize> TilePatches<'a, NR> {
    #[inline(always)]
    fn of(from: &Folded<'a>) -> Self {
        let mut next = [usize::MAX; NR];
        for n in 0..NR {
            if let Some(patches) = &from.patches[n] {
                next[n] = patches.next_unit();
            }
        }
        Self { patches: from.patches, next }
    }

    /// Applies the patches of `unit` to panel `n`.
    #[cold]
    #[inline(never)]
    fn apply(&mut self, n: usize, unit: usize, values: &mut [u8; UNFOLDED_BYTES]) {
        if let Some(patches) = &mut self.patches[n] {
            patches.apply(unit, values);
            self.next[n] = patches.next_unit();
        }
    }
}
