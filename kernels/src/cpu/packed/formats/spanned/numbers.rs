//! Floating-point codes: within a span, products are added in ascending column order by fused multiply-add.
//! The sum, times the span's scale, is then added to that of the earlier spans in the same way.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;

use super::super::super::{PANEL, Packed};
use crate::cpu::matmul::float::{for_size, registers};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::Tile;
use crate::cpu::matmul::tree::Tree;
use crate::cpu::rows::{Rows, Strided};
use crate::cpu::simd::integer::IntegerIsa;
use crate::cpu::simd::{Isa, Kernel, Simd, e4m3_in_256ths};

/// Columns multiplied between two prefetches; spans are whole chunks.
pub(super) const CHUNK: usize = 16;
/// Size of a table of sixteen values, in bytes.
pub(super) const TABLE_BYTES: usize = 16 * size_of::<f32>();

pub(in super::super) fn multiply_fp8(part: &Part<'_>, isa: Isa, _: IntegerIsa) {
    isa.run(Product::<Fp8> { part, codes: PhantomData });
}

pub(in super::super) fn multiply_table(part: &Part<'_>, isa: Isa, _: IntegerIsa) {
    isa.run(Product::<LookedUp> { part, codes: PhantomData });
}

/// FP8 number of an output and column.
pub(super) fn fp8(packed: &Packed, row: usize, col: usize) -> f32 {
    e4m3_in_256ths(packed.stored_code(row, col))
}

/// Table value of an output and column.
pub(super) fn looked_up(packed: &Packed, row: usize, col: usize) -> f32 {
    let value = &table(packed)[usize::from(packed.stored_code(row, col)) * 4..][..4];
    f32::from_le_bytes(std::array::from_fn(|i| value[i]))
}

/// Table of the matrix.
fn table(packed: &Packed) -> &[u8] {
    &packed.bytes()[packed.layout().tail_at()..][..TABLE_BYTES]
}

/// Decoding of codes to numbers.
trait Codes {
    /// Bytes of two columns of sixteen outputs.
    const PAIR_BYTES: usize;
    /// State needed for decoding.
    type Decoder<S: Simd>: Copy;

    /// # Safety
    /// `table` points to sixteen readable values if the format has a table.
    unsafe fn decoder<S: Simd>(s: S, table: *const u8) -> Self::Decoder<S>;

    /// Numbers of two columns.
    ///
    /// # Safety
    /// `PAIR_BYTES` bytes at `from` are readable.
    unsafe fn pair<S: Simd>(s: S, decoder: Self::Decoder<S>, from: *const u8) -> [S::V; 2];
}

struct Fp8;

impl Codes for Fp8 {
    const PAIR_BYTES: usize = 2 * PANEL;
    type Decoder<S: Simd> = ();

    #[inline(always)]
    unsafe fn decoder<S: Simd>(_: S, _: *const u8) {}

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, (): (), from: *const u8) -> [S::V; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { [s.load_e4m3(from), s.load_e4m3(from.add(PANEL))] }
    }
}

struct LookedUp;

impl Codes for LookedUp {
    const PAIR_BYTES: usize = PANEL;
    type Decoder<S: Simd> = S::Table;

    #[inline(always)]
    unsafe fn decoder<S: Simd>(s: S, table: *const u8) -> S::Table {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load_table(table.cast()) }
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(s: S, table: S::Table, from: *const u8) -> [S::V; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { s.look_up(table, from) }
    }
}

/// Some rows of one matrix, for all rows of `x`.
struct Product<'a, C> {
    part: &'a Part<'a>,
    codes: PhantomData<C>,
}

impl<C: Codes> Kernel for Product<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let part = self.part;
        part.for_each_tile(const { registers::<S>() }, |tile| {
            let tile = &tile;
            for_size!(s, S, tile, Block<C> { part, tile });
        });
    }
}

/// Tile of `MR` rows of `x` by `NR` panels.
struct Block<'a, C, const MR: usize, const NR: usize> {
    part: &'a Part<'a>,
    tile: &'a Tile,
    arithmetic: PhantomData<C>,
}

impl<C: Codes, const MR: usize, const NR: usize> Kernel for Block<'_, C, MR, NR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (part, tile) = (self.part, self.tile);
        part.prefetch_results::<S, MR, NR>(s, tile);
        let sums = self.sums(s);
        part.put_tile(s, tile, sums);
    }
}

impl<C: Codes, const MR: usize, const NR: usize> Block<'_, C, MR, NR> {
    #[inline(always)]
    fn sums<S: Simd>(&self, s: S) -> [[S::V; NR]; MR] {
        let (part, tile, packed) = (self.part, self.tile, self.part.linear.weights);
        let (layout, Rows { values: x, stride }) = (packed.layout(), part.x.values());
        let (x, first) = (&x[(part.rows.start + tile.first) * stride..], part.first / PANEL + tile.panel);
        let (panel_bytes, panel_scales) = (layout.panel_bytes(), layout.panel_scales());
        let w = &packed.values()[first * panel_bytes..];
        let scales = &packed.scales()[first * panel_scales * 4..];
        let (apart, scales_apart) = (tile.apart * panel_bytes, tile.apart * panel_scales * 4);
        let (columns, chunk_bytes) = (layout.cols.next_multiple_of(CHUNK), CHUNK / 2 * C::PAIR_BYTES);
        assert!((MR - 1) * stride + columns <= x.len(), "x contains all rows");
        assert!((NR - 1) * apart + panel_bytes <= w.len(), "the weights contain all panels");
        assert!((NR - 1) * scales_apart + panel_scales * 4 <= scales.len(), "scales of all panels");
        assert!(columns / CHUNK * chunk_bytes <= panel_bytes, "a panel has all columns");
        let (chunks, spans) = (layout.leaf_cols().div_ceil(CHUNK), layout.leaf_spans());
        let span_chunks = layout.scale_cols() / CHUNK;
        let (mut x, mut w, mut scales) = (x.as_ptr(), w.as_ptr(), scales.as_ptr());
        // SAFETY: formats with table lookups have a table.
        let decoder = unsafe { C::decoder(s, packed.bytes()[layout.tail_at()..].as_ptr()) };
        let mut prefetch = tile.prefetch.cursor(columns / CHUNK);
        let mut tree = Tree::<S, MR, NR>::new(layout.leaves);
        loop {
            let mut results = [[s.zero(); NR]; MR];
            for span in 0..spans {
                let mut sums = [[s.zero(); NR]; MR];
                for _ in 0..span_chunks.min(chunks - span * span_chunks) {
                    prefetch.issue::<S, NR>(s, w, apart, chunk_bytes);
                    let (rows, panels) = (Strided { at: x, apart: stride }, Strided { at: w, apart });
                    // SAFETY: checked above; this many chunks remain.
                    sums = unsafe { chunk::<S, C, MR, NR>(s, decoder, rows, panels, sums) };
                    (x, w) = (x.wrapping_add(CHUNK), w.wrapping_add(chunk_bytes));
                }
                for n in 0..NR {
                    // SAFETY: checked above; every span has a scale for each of sixteen outputs.
                    let scale = unsafe { s.load(scales.add(n * scales_apart).cast()) };
                    for m in 0..MR {
                        results[m][n] = s.fma(sums[m][n], scale, results[m][n]);
                    }
                }
                scales = scales.wrapping_add(PANEL * 4);
            }
            if let Some(sums) = tree.put(s, results) {
                return sums;
            }
        }
    }
}

/// Adds the products of a chunk of columns.
///
/// # Safety
/// A chunk of all rows of `x` and all panels is readable.
#[inline(always)]
unsafe fn chunk<S: Simd, C: Codes, const MR: usize, const NR: usize>(
    s: S,
    decoder: C::Decoder<S>,
    x: Strided<f32>,
    w: Strided<u8>,
    mut sums: [[S::V; NR]; MR],
) -> [[S::V; NR]; MR] {
    let (Strided { at: x, apart: stride }, Strided { at: w, apart }) = (x, w);
    for pair in 0..CHUNK / 2 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut weights = [C::pair(s, decoder, w.add(pair * C::PAIR_BYTES)); NR];
            for n in 1..NR {
                weights[n] = C::pair(s, decoder, w.add(n * apart + pair * C::PAIR_BYTES));
            }
            for column in 0..2 {
                for m in 0..MR {
                    let x = s.splat(*x.add(m * stride + 2 * pair + column));
                    for n in 0..NR {
                        sums[m][n] = s.fma(x, weights[n][column], sums[m][n]);
                    }
                }
            }
        }
    }
    sums
}
