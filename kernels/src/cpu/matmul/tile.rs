//! The inner loop: a tile of dot products, all of them in registers.
//!
//! Plain loops over constant bounds, no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use super::super::simd::{LANES, Simd};

/// How far ahead of the multiplication weights are asked for. One core's plain loads do not reach the memory's
/// bandwidth; asking 2 KiB ahead on each row does (69% against 95% of it, measured on Emerald Rapids).
const PREFETCH_BYTES: usize = 2048;
const LINE: usize = 64;

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

/// `MR` rows of x against `NR` rows of weights.
pub(super) struct Tile<'a> {
    /// `[MR, k]`
    pub(super) x: &'a [f32],
    /// `[NR, k]` in its format.
    pub(super) w: &'a [u8],
    pub(super) k: usize,
    /// Whether to ask for the weights that follow: once for each pass over them.
    pub(super) prefetch: bool,
}

impl Tile<'_> {
    /// The dot products.
    #[inline(always)]
    pub(super) fn sums<S: Simd, E: Element, const MR: usize, const NR: usize>(
        &self,
        s: S,
    ) -> [[f32; NR]; MR] {
        let (k, row_bytes) = (self.k, self.k * E::BYTES);
        assert!(self.x.len() == MR * k && self.w.len() == NR * row_bytes, "a tile's operands have its size");
        let (x, w) = (self.x.as_ptr(), self.w.as_ptr());
        let mut sums = [[s.zero(); NR]; MR];
        let whole = k / LANES * LANES;
        // Past the end of a row follows not the next row, which this tile reads too, but the one NR further.
        let (near, far) = (PREFETCH_BYTES, PREFETCH_BYTES + (NR - 1) * row_bytes);
        let mut at = 0;
        while at < whole {
            if self.prefetch && (at * E::BYTES).is_multiple_of(LINE) {
                let ahead = at * E::BYTES + if at * E::BYTES + near < row_bytes { near } else { far };
                for n in 0..NR {
                    s.prefetch(w.wrapping_add(n * row_bytes + ahead));
                }
            }
            // SAFETY: at + 16 <= k, so both rows have that many values more.
            unsafe {
                let mut wide = [s.zero(); NR];
                for n in 0..NR {
                    wide[n] = E::load(s, w.add(n * row_bytes + at * E::BYTES));
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
        if whole < k {
            self.last_lanes::<S, E, MR, NR>(s, whole, &mut sums);
        }
        reduce(s, &sums)
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
            let from = (n * self.k + whole) * E::BYTES;
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
