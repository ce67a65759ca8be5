//! The inner loop: a tile of dot products, all of them in registers.
//!
//! Plain loops over constant bounds, no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::ops::Range;

use super::super::super::simd::Simd;
use super::arithmetic::Arithmetic;
use super::scratch::{LINE_BYTES, Line};

/// `MR` rows of x against `NR` rows of weights, some columns of both.
pub(super) struct Tile<'a> {
    /// Lines of these columns, packed `[step, part, MR]`.
    pub(super) x: &'a [u8],
    /// `NR` rows of `k` values in their format, `apart` rows apart.
    pub(super) w: &'a [u8],
    pub(super) apart: usize,
    pub(super) k: usize,
    /// All, or a block that starts and, unless it is the last, ends at a whole step.
    pub(super) columns: Range<usize>,
    pub(super) ahead: Ahead,
}

/// Weights to ask for.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// None.
    Nothing,
    /// Those so many bytes further in each row.
    Soon(usize),
    /// Those so many bytes further, into the second-level cache.
    Later(usize),
}

impl Tile<'_> {
    /// Weight rows from the first to the last of `count`.
    fn span(&self, count: usize) -> usize {
        (count - 1) * self.apart + 1
    }

    /// The dot products, once the last columns are in. Until then their lanes are kept in `unfinished`, which has
    /// `MR * NR` lines, or none if there is only one block.
    #[inline(always)]
    pub(super) fn sums<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(
        &self,
        s: S,
        unfinished: &mut [Line],
    ) -> Option<[[f32; NR]; MR]> {
        let (row_bytes, columns) = (self.k * A::WEIGHT_BYTES, &self.columns);
        assert!(columns.start < columns.end && columns.end <= self.k, "columns lie inside the row");
        let steps = columns.len().div_ceil(A::COLUMNS);
        assert_eq!(self.x.len(), steps * A::PARTS * MR * LINE_BYTES, "x has its size");
        assert_eq!(self.w.len(), self.span(NR) * row_bytes, "weights have their size");
        let mut sums = [[s.zero(); NR]; MR];
        if columns.start > 0 {
            for m in 0..MR {
                for n in 0..NR {
                    // SAFETY: a line is sixteen values.
                    sums[m][n] = unsafe { s.load((&raw const unfinished[m * NR + n]).cast()) };
                }
            }
        }
        sums = self.whole_steps::<S, A, MR, NR>(s, sums);
        if columns.end < self.k {
            for m in 0..MR {
                for n in 0..NR {
                    // SAFETY: a line is sixteen values.
                    unsafe { s.store(sums[m][n], (&raw mut unfinished[m * NR + n]).cast()) };
                }
            }
            return None;
        }
        if !columns.len().is_multiple_of(A::COLUMNS) {
            sums = self.last_step::<S, A, MR, NR>(s, sums);
        }
        Some(reduce(s, &sums))
    }

    /// Adds all steps that are whole. Sums come and go by value: they stay in registers, which a reference would not let them.
    #[inline(always)]
    fn whole_steps<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(
        &self,
        s: S,
        mut sums: [[S::V; NR]; MR],
    ) -> [[S::V; NR]; MR] {
        let (row_bytes, step_bytes) = (self.k * A::WEIGHT_BYTES, A::COLUMNS * A::WEIGHT_BYTES);
        let row_step = self.apart * row_bytes;
        let mut w = self.w.as_ptr().wrapping_add(self.columns.start * A::WEIGHT_BYTES);
        let mut x = self.x.as_ptr();
        // Past the end of a row's block follows the next row's, or, where rows lie side by side, the one NR further.
        let block_bytes = self.columns.len() * A::WEIGHT_BYTES;
        let next = if self.apart == 1 { NR } else { 1 };
        let far = next * row_bytes - block_bytes;
        let mut taken = 0;
        for _ in 0..self.columns.len() / A::COLUMNS {
            if step_bytes >= LINE_BYTES || taken % LINE_BYTES == 0 {
                match self.ahead {
                    Ahead::Nothing => {}
                    Ahead::Soon(bytes) => {
                        let ahead = if taken + bytes < block_bytes { bytes } else { bytes + far };
                        for n in 0..NR {
                            s.prefetch(w.wrapping_add(n * row_step + ahead));
                        }
                    }
                    Ahead::Later(bytes) => {
                        for n in 0..NR {
                            s.prefetch_later(w.wrapping_add(n * row_step + bytes));
                        }
                    }
                }
            }
            for part in 0..A::PARTS {
                // SAFETY: a whole step of all rows of weights, and as many lines of x, lie ahead.
                unsafe {
                    let mut weights = [A::weights(s, w, part); NR];
                    for n in 1..NR {
                        weights[n] = A::weights(s, w.add(n * row_step), part);
                    }
                    for m in 0..MR {
                        let x = A::x(s, x.add((part * MR + m) * LINE_BYTES));
                        for n in 0..NR {
                            sums[m][n] = A::add(s, x, weights[n], sums[m][n]);
                        }
                    }
                }
            }
            x = x.wrapping_add(A::PARTS * MR * LINE_BYTES);
            w = w.wrapping_add(step_bytes);
            taken += step_bytes;
        }
        sums
    }

    /// Adds the columns after the last whole step, with zeros behind them.
    #[inline(always)]
    fn last_step<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(
        &self,
        s: S,
        mut sums: [[S::V; NR]; MR],
    ) -> [[S::V; NR]; MR] {
        let rest = self.columns.len() % A::COLUMNS;
        let x = &self.x[self.x.len() - A::PARTS * MR * LINE_BYTES..];
        for n in 0..NR {
            let mut padded = [0u8; LINE_BYTES];
            let from = (n * self.apart * self.k + self.k - rest) * A::WEIGHT_BYTES;
            let bytes = rest * A::WEIGHT_BYTES;
            padded[..bytes].copy_from_slice(&self.w[from..from + bytes]);
            for part in 0..A::PARTS {
                // SAFETY: `padded` holds a step's weights of any format; x has a line for every row and part.
                unsafe {
                    let weights = A::weights(s, padded.as_ptr(), part);
                    for m in 0..MR {
                        let x = A::x(s, x.as_ptr().add((part * MR + m) * LINE_BYTES));
                        sums[m][n] = A::add(s, x, weights, sums[m][n]);
                    }
                }
            }
        }
        sums
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
