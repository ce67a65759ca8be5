//! The inner loop: a tile of dot products, all of them in registers.
//!
//! Plain loops over constant bounds, no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::ops::Range;

use super::super::super::simd::{LANES, Simd};

/// How far ahead of the multiplication weights are asked for. One core's plain loads do not reach the memory's
/// bandwidth; asking 2 KiB ahead on each row does (69% against 95% of it, measured on Emerald Rapids).
pub(in crate::cpu) const PREFETCH_BYTES: usize = 2048;
pub(super) const LINE: usize = 64;

/// A format weights are stored in.
pub(super) trait Element {
    /// Bytes of a value.
    const BYTES: usize;
    /// Sixteen values, widened.
    ///
    /// # Safety
    /// `from` is readable for `16 * BYTES`.
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V;
}

pub(super) struct Bf16;
pub(super) struct F16;
pub(super) struct F32;

impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { simd.load_bf16(from) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { simd.load_f16(from) }
    }
}

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { simd.load(from.cast()) }
    }
}

/// Columns of a block: what fits of `k`, in whole cache lines of every format.
pub(super) fn block_columns(fitting: usize, k: usize) -> usize {
    if k <= fitting { k } else { (fitting / (2 * LANES)).max(1) * 2 * LANES }
}

/// `MR` rows of x against `NR` rows of weights, some columns of both.
pub(super) struct Tile<'a> {
    /// `[MR, k]`
    pub(super) x: &'a [f32],
    /// `NR` rows of `k` values in their format, `apart` rows apart.
    pub(super) w: &'a [u8],
    pub(super) apart: usize,
    pub(super) k: usize,
    /// All, or a block that starts and, unless it is the last, ends at a whole vector.
    pub(super) columns: Range<usize>,
    /// Whether to ask for the weights that follow: once for each pass over them.
    pub(super) prefetch: bool,
}

impl Tile<'_> {
    /// Weight rows from the first to the last of `count`.
    fn span(&self, count: usize) -> usize {
        (count - 1) * self.apart + 1
    }

    /// The dot products, once the last columns are in. Until then their lanes are kept in `unfinished`, which has
    /// `MR * NR * 16` values, or none if there is only one block.
    #[inline(always)]
    pub(super) fn sums<S: Simd, E: Element, const MR: usize, const NR: usize>(
        &self,
        s: S,
        unfinished: &mut [f32],
    ) -> Option<[[f32; NR]; MR]> {
        let (k, row_bytes, start) = (self.k, self.k * E::BYTES, self.columns.start);
        assert!(
            self.x.len() == MR * k && self.w.len() == self.span(NR) * row_bytes,
            "operands have their size"
        );
        assert!(self.columns.end <= k, "columns lie inside the row");
        let (x, w) = (self.x.as_ptr(), self.w.as_ptr());
        let mut sums = [[s.zero(); NR]; MR];
        if start > 0 {
            for m in 0..MR {
                for n in 0..NR {
                    let lanes = &unfinished[(m * NR + n) * LANES..][..LANES];
                    // SAFETY: sixteen values.
                    sums[m][n] = unsafe { s.load(lanes.as_ptr()) };
                }
            }
        }
        let whole = start + (self.columns.end - start) / LANES * LANES;
        // Past the end of a row's block follows the next row's, or, where rows lie side by side, the one NR further.
        let block_bytes = (self.columns.end - start) * E::BYTES;
        let near_end = self.columns.end * E::BYTES;
        let next = if self.apart == 1 { NR } else { 1 };
        let far = PREFETCH_BYTES + next * row_bytes - block_bytes;
        let row_step = self.apart * row_bytes;
        let mut at = start;
        while at < whole {
            if self.prefetch && (at * E::BYTES).is_multiple_of(LINE) {
                let is_near = at * E::BYTES + PREFETCH_BYTES < near_end;
                let ahead = at * E::BYTES + if is_near { PREFETCH_BYTES } else { far };
                for n in 0..NR {
                    s.prefetch(w.wrapping_add(n * row_step + ahead));
                }
            }
            // SAFETY: at + 16 <= k, so both rows have that many values more.
            unsafe {
                let mut wide = [s.zero(); NR];
                for n in 0..NR {
                    wide[n] = E::load(s, w.add(n * row_step + at * E::BYTES));
                }
                for m in 0..MR {
                    let x = s.load(x.add(m * k + at));
                    for n in 0..NR {
                        sums[m][n] = s.fma(x, wide[n], sums[m][n]);
                    }
                }
            }
            at += LANES;
        }
        if self.columns.end < k {
            for m in 0..MR {
                for n in 0..NR {
                    let lanes = &mut unfinished[(m * NR + n) * LANES..][..LANES];
                    // SAFETY: sixteen values.
                    unsafe { s.store(sums[m][n], lanes.as_mut_ptr()) };
                }
            }
            return None;
        }
        if whole < k {
            self.last_lanes::<S, E, MR, NR>(s, whole, &mut sums);
        }
        Some(reduce(s, &sums))
    }

    /// The values after the last whole vector, zeros behind them.
    #[inline(always)]
    fn last_lanes<S: Simd, E: Element, const MR: usize, const NR: usize>(
        &self,
        s: S,
        whole: usize,
        sums: &mut [[S::V; NR]; MR],
    ) {
        let rest = self.k - whole;
        for n in 0..NR {
            let mut padded = [0u8; LANES * 4];
            let from = (n * self.apart * self.k + whole) * E::BYTES;
            padded[..rest * E::BYTES].copy_from_slice(&self.w[from..from + rest * E::BYTES]);
            // SAFETY: `padded` holds 16 values of any format; row m of x has `rest` values more.
            unsafe {
                let w = E::load(s, padded.as_ptr());
                for m in 0..MR {
                    let x = s.load_part(self.x.as_ptr().add(m * self.k + whole), rest);
                    sums[m][n] = s.fma(x, w, sums[m][n]);
                }
            }
        }
    }
}

/// Sums the lanes of every vector, four vectors at a time.
#[inline(always)]
fn reduce<S: Simd, const MR: usize, const NR: usize>(s: S, sums: &[[S::V; NR]; MR]) -> [[f32; NR]; MR] {
    let mut out = [[0.0; NR]; MR];
    let mut first = 0;
    while first < MR * NR {
        let mut four = [s.zero(); 4];
        for i in 0..4 {
            if first + i < MR * NR {
                four[i] = sums[(first + i) / NR][(first + i) % NR];
            }
        }
        let four = s.sum4(four);
        for i in 0..4 {
            if first + i < MR * NR {
                out[(first + i) / NR][(first + i) % NR] = four[i];
            }
        }
        first += 4;
    }
    out
}
