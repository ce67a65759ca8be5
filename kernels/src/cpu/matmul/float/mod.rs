//! Weights that are floating-point numbers, where they lie in the file.
//!
//! Lane `j` of sixteen takes every `k` that is `j` modulo 16, ascending, by fused multiply-add; then
//! [`super::super::simd::Simd::sum`]. Tiles keep up to 24 such sums in registers.

mod tile;

use super::super::matrix::Storage;
use super::super::simd::{Kernel, LANES, Simd};
use super::Part;
pub(in crate::cpu) use tile::PREFETCH_BYTES;
use tile::{Bf16, Element, F16, F32, Tile};

/// Bytes of `x` that stay in the first-level cache while a task's weights pass by: a tile's rows, or a block of their
/// columns.
const X_BLOCK_BYTES: usize = 32 << 10;

/// Some rows of one matrix, for all rows of `x`.
pub(super) struct Product<'a> {
    pub(super) part: &'a Part<'a>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.part.linear.weights.storage() {
            Storage::Bf16(bytes) => self.all_tiles::<S, Bf16>(simd, bytes),
            Storage::F16(bytes) => self.all_tiles::<S, F16>(simd, bytes),
            Storage::F32(bytes) => self.all_tiles::<S, F32>(simd, bytes),
            Storage::Packed(_) => unreachable!("packed weights are multiplied as integers"),
        }
    }
}

impl Product<'_> {
    /// All tiles: `x` in tiles of nearly equal height, and for each of them the weights in tiles of equal width.
    #[inline(always)]
    fn all_tiles<S: Simd, E: Element>(&self, s: S, bytes: &[u8]) {
        let (k, all_x, all_m) = (self.part.linear.weights.cols(), self.part.x.values(), self.part.x.rows());
        let (first_row, count) = (self.part.first, self.part.count);
        let highest = if S::ACCUMULATORS >= 24 { 8 } else { 2 };
        let tiles = all_m.div_ceil(highest);
        let (height, taller) = (all_m / tiles, all_m % tiles);
        let tallest = height + usize::from(taller > 0);
        let widest = match tallest {
            1 => 4,
            2..=6 if S::ACCUMULATORS >= 24 => 4,
            _ => 3,
        };
        let block = tile::block_columns(X_BLOCK_BYTES / (4 * tallest), k);
        // With one tile of x, each of a tile's weight rows walks through its own part of the task's: several long streams
        // come from memory faster than one. With more, neighbours lie side by side in y.
        let full = count / widest;
        // Unfinished sums, where the columns take more than one block.
        let mut unfinished = vec![0.0; if block < k { count * tallest * LANES } else { 0 }];
        let mut m = 0;
        for tile in 0..tiles {
            let height = height + usize::from(tile < taller);
            let x = &all_x[m * k..][..height * k];
            self.prefetch_y(s, m, height);
            for from in (0..k).step_by(block) {
                let columns = from..k.min(from + block);
                for i in 0..full + count % widest {
                    // One full tile after another, then single rows.
                    let (width, place) =
                        if i < full { (widest, i * widest) } else { (1, full * (widest - 1) + i) };
                    let (n, apart) = if i < full && tiles == 1 { (i, full) } else { (place, 1) };
                    let last = first_row + n + (width - 1) * apart;
                    let w = &bytes[(first_row + n) * k * E::BYTES..(last + 1) * k * E::BYTES];
                    let t = Tile { x, w, k, apart, columns: columns.clone(), prefetch: tile == 0 };
                    let lanes = if block < k { height * LANES } else { 0 };
                    let unfinished = &mut unfinished[place * lanes..][..width * lanes];
                    macro_rules! sizes {
                        ($(($mr:literal, $nr:literal)),*) => {
                            match (height, width) {
                                $(($mr, $nr) if $mr * $nr <= S::ACCUMULATORS => {
                                    if let Some(sums) = t.sums::<S, E, $mr, $nr>(s, unfinished) {
                                        self.put::<$mr, $nr>(m, n, apart, sums);
                                    }
                                })*
                                _ => unreachable!("every tile height and width has an arm"),
                            }
                        };
                    }
                    sizes!(
                        (1, 3),
                        (1, 4),
                        (2, 4),
                        (3, 4),
                        (4, 4),
                        (5, 4),
                        (6, 4),
                        (2, 3),
                        (6, 3),
                        (7, 3),
                        (8, 3),
                        (1, 1),
                        (2, 1),
                        (3, 1),
                        (4, 1),
                        (5, 1),
                        (6, 1),
                        (7, 1),
                        (8, 1)
                    );
                }
            }
            m += height;
        }
    }

    /// Asks for the part of `y` that rows `m..m + height` of `x` will be written to: a store that misses the cache
    /// holds up all later ones.
    #[inline(always)]
    fn prefetch_y<S: Simd>(&self, s: S, m: usize, height: usize) {
        for row in m..m + height {
            // SAFETY: one at a time.
            let y = unsafe { self.part.y(row) };
            for line in y.chunks(tile::LINE / size_of::<f32>()) {
                s.prefetch(line.as_ptr().cast());
            }
        }
    }

    /// Writes a tile's sums: of every `apart`-th weight row from `n` on, and rows of `x` from `m` on.
    #[inline(always)]
    fn put<const MR: usize, const NR: usize>(&self, m: usize, n: usize, apart: usize, sums: [[f32; NR]; MR]) {
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: one at a time.
            let y = unsafe { self.part.y(m + i) };
            for (j, sum) in sums.iter().enumerate() {
                self.part.put(y, n + j * apart, *sum);
            }
        }
    }
}
