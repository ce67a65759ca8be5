//! Weights that are floating-point numbers, where they lie in the file.
//!
//! [`arithmetic`] says in which order products are summed. With many rows of `x` see [`panel`]. With few, tiles keep up to 24
//! such sums in registers while a task's weights pass by; the rows of `x` they belong to are packed first, side by side, so
//! that they fit the first-level cache.

mod arithmetic;
mod panel;
mod scratch;
mod tile;

use std::marker::PhantomData;
use std::ops::Range;

use super::super::matrix::Storage;
use super::super::prefetch;
use super::super::simd::{Kernel, Simd};
use super::{Part, Write, tile_heights};
use arithmetic::{Arithmetic, Bf16, Dot, F16, F32, Split, Wide};
use scratch::{LINE_BYTES, Line, Scratch};
use tile::{Ahead, Tile};

/// Bytes of packed `x` that stay in the first-level cache while a task's weights pass by: a tile's rows, or a block of
/// their columns.
const X_BLOCK_BYTES: usize = 16 << 10;
/// Rows of weights a task takes are a multiple of this, so that tiles of 3 and of 4 rows fit.
const TILE_ROWS: usize = 12;
/// Rows of `x` from which on it pays to widen them before, where a dot product is several instructions.
const SPLIT_ROWS: usize = 3;

/// Some rows of one matrix, for all rows of `x`, activations in `f32`.
pub(super) struct Product<'a> {
    pub(super) part: &'a Part<'a>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.part.linear.weights.storage() {
            Storage::Bf16(w) => self.part.product::<S, Wide<Bf16>>(s, w),
            Storage::F16(w) => self.part.product::<S, Wide<F16>>(s, w),
            Storage::F32(w) => self.part.product::<S, Wide<F32>>(s, w),
            Storage::Packed(_) => unreachable!("packed weights are multiplied as integers"),
        }
    }
}

/// Some rows of one bfloat16 matrix, for all rows of `x`, activations in that format too.
pub(super) struct PairProduct<'a> {
    pub(super) part: &'a Part<'a>,
    /// The whole matrix.
    pub(super) weights: &'a [u8],
}

impl Kernel for PairProduct<'_> {
    type Output = ();
    const USES_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::HAS_DOT || self.part.x.rows() < SPLIT_ROWS {
            self.part.product::<S, Dot>(s, self.weights)
        } else {
            self.part.product::<S, Split>(s, self.weights)
        }
    }
}

/// Rows of a task are a multiple of this.
pub(super) fn row_multiple(m: usize) -> usize {
    if m < panel::LEAST_ROWS { TILE_ROWS } else { panel::WIDEST }
}

impl Part<'_> {
    /// All rows of `x` against all of the task's weights, which lie in `w`.
    #[inline(always)]
    fn product<S: Simd, A: Arithmetic>(&self, s: S, w: &[u8]) {
        if self.x.rows() < panel::LEAST_ROWS { self.tiles::<S, A>(s, w) } else { self.panels::<S, A>(s, w) }
    }

    /// All tiles: `x` in tiles of nearly equal height, and for each of them, block by block of columns, all weights.
    #[inline(always)]
    fn tiles<S: Simd, A: Arithmetic>(&self, s: S, w: &[u8]) {
        let (k, rows) = (self.linear.weights.cols(), self.x.rows());
        // Two tiles of four rows are faster than one of eight by three rows of weights: the second asks for the next task's.
        let highest = if S::ACCUMULATORS >= 24 { 6 } else { 2 };
        let heights = tile_heights(rows, highest);
        let (tiles, tallest) = (heights.tiles, heights.tallest());
        let width = if tallest * 4 <= S::ACCUMULATORS { 4 } else { 3 };
        let block = block_columns::<A>(tallest, k);
        let mut scratch = Scratch::take();
        let unfinished = if block < k { self.count * tallest } else { 0 };
        let packed = block.div_ceil(A::COLUMNS) * A::PARTS * tallest;
        let [packed, unfinished, _] = scratch.parts([packed, unfinished, 0]);
        let mut first = 0;
        for (tile, height) in heights.enumerate() {
            self.prefetch_y(s, first, height);
            for from in (0..k).step_by(block) {
                let columns = from..k.min(from + block);
                let x = self.pack::<S, A>(s, first..first + height, &columns, packed);
                let pass = Pass { x, w, first, height, width, columns, tile, tiles };
                self.pass::<S, A>(s, &pass, unfinished);
            }
            first += height;
        }
        scratch.keep();
    }

    /// Some columns of some rows of `x`, as [`Tile`] reads them. A single row lies so already.
    #[inline(always)]
    fn pack<'b, S: Simd, A: Arithmetic>(
        &'b self,
        s: S,
        rows: Range<usize>,
        columns: &Range<usize>,
        packed: &'b mut [Line],
    ) -> &'b [u8] {
        let k = self.x.width();
        let (x, value_bytes) = (A::rows(self.x), LINE_BYTES / A::COLUMNS);
        let of_row =
            |row: usize| &x[(row * k + columns.start) * value_bytes..(row * k + columns.end) * value_bytes];
        if rows.len() == 1 && A::PARTS == 1 && columns.len().is_multiple_of(A::COLUMNS) {
            return of_row(rows.start);
        }
        let (height, steps) = (rows.len(), columns.len().div_ceil(A::COLUMNS));
        let packed = &mut packed[..steps * A::PARTS * height];
        for (m, row) in rows.enumerate() {
            let (whole, rest) = of_row(row).as_chunks::<LINE_BYTES>();
            let mut padded = [0; LINE_BYTES];
            padded[..rest.len()].copy_from_slice(rest);
            for step in 0..steps {
                let from = whole.get(step).unwrap_or(&padded).as_ptr();
                let to = packed[step * A::PARTS * height + m..].as_mut_ptr();
                // SAFETY: both chunks are a line; the last part is `PARTS - 1` heights after the first.
                unsafe { A::pack(s, from, to, height) };
            }
        }
        scratch::bytes(packed)
    }

    /// All of the task's weights against one block of one tile of `x`.
    #[inline(always)]
    fn pass<S: Simd, A: Arithmetic>(&self, s: S, pass: &Pass<'_>, unfinished: &mut [Line]) {
        let k = self.linear.weights.cols();
        let (count, width, height) = (self.count, pass.width, pass.height);
        // With one tile of x, each of a tile's weight rows walks through its own part of the task's: several long streams
        // come from memory faster than one. With more, neighbours lie side by side in y.
        let full = count / width;
        for i in 0..full + count % width {
            // One full tile after another, then single rows.
            let (width, place) = if i < full { (width, i * width) } else { (1, full * (width - 1) + i) };
            let (n, apart) = if i < full && pass.tiles == 1 { (i, full) } else { (place, 1) };
            let from = self.first + n;
            let w =
                &pass.w[from * k * A::WEIGHT_BYTES..(from + (width - 1) * apart + 1) * k * A::WEIGHT_BYTES];
            let tile =
                Tile { x: pass.x, w, k, apart, columns: pass.columns.clone(), ahead: self.ahead(pass, i) };
            let lines = if pass.columns.len() < k { height } else { 0 };
            let unfinished = &mut unfinished[place * lines..][..width * lines];
            macro_rules! sizes {
                ($(($mr:literal, $nr:literal)),*) => {
                    match (height, width) {
                        $(($mr, $nr) if const { $mr * $nr <= S::ACCUMULATORS } => {
                            let sums = s.call(Sums::<A, $mr, $nr> { tile, unfinished, arithmetic: PhantomData });
                            if let Some(sums) = sums {
                                self.put_tile::<$mr, $nr>(pass.first, n, apart, sums);
                            }
                        })*
                        _ => unreachable!("every tile height and width has an arm"),
                    }
                };
            }
            sizes!(
                (1, 4),
                (2, 4),
                (3, 4),
                (4, 4),
                (5, 4),
                (6, 4),
                (1, 3),
                (2, 3),
                (1, 1),
                (2, 1),
                (3, 1),
                (4, 1),
                (5, 1),
                (6, 1)
            );
        }
    }

    /// What a pass asks for while it takes the `i`-th tile of weights. The first one, what it will take soon. All later ones
    /// together, what this thread's next task will: so memory works while the tiles of this task come from the cache.
    #[inline(always)]
    fn ahead(&self, pass: &Pass<'_>, i: usize) -> Ahead {
        match (pass.tile, self.next) {
            (0, _) => Ahead::Soon(prefetch::distance()),
            (tile, Some(bytes)) if (tile + i).is_multiple_of(pass.tiles - 1) => Ahead::Later(bytes),
            _ => Ahead::Nothing,
        }
    }

    /// Asks for the part of `y` that rows `m..m + height` of `x` will be written to: a store that misses the cache
    /// holds up all later ones.
    #[inline(always)]
    fn prefetch_y<S: Simd>(&self, s: S, m: usize, height: usize) {
        for row in m..m + height {
            // SAFETY: one at a time.
            let y = unsafe { self.y(row) };
            for line in y.chunks(LINE_BYTES / size_of::<f32>()) {
                s.prefetch(line.as_ptr().cast());
            }
        }
    }

    /// Writes a tile's sums: of every `apart`-th weight row from `n` on, and rows of `x` from `m` on.
    #[inline(never)]
    fn put_tile<const MR: usize, const NR: usize>(
        &self,
        m: usize,
        n: usize,
        apart: usize,
        sums: [[f32; NR]; MR],
    ) {
        for (i, mut sums) in sums.into_iter().enumerate() {
            // SAFETY: one at a time.
            let y = unsafe { self.y(m + i) };
            if apart > 1 {
                for (j, sum) in sums.into_iter().enumerate() {
                    self.put(y, n + j * apart, sum);
                }
                continue;
            }
            // Side by side: a vector of them at once.
            let y = &mut y[n..][..NR];
            if let Some(bias) = self.linear.bias {
                let bias = &bias[self.first + n..][..NR];
                (0..NR).for_each(|j| sums[j] += bias[j]);
            }
            if self.write == Write::Add {
                (0..NR).for_each(|j| sums[j] += y[j]);
            }
            y.copy_from_slice(&sums);
        }
    }
}

/// [`Tile::sums`] as a function of its own.
struct Sums<'a, A, const MR: usize, const NR: usize> {
    tile: Tile<'a>,
    unfinished: &'a mut [Line],
    arithmetic: PhantomData<A>,
}

impl<A: Arithmetic, const MR: usize, const NR: usize> Kernel for Sums<'_, A, MR, NR> {
    type Output = Option<[[f32; NR]; MR]>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        self.tile.sums::<S, A, MR, NR>(s, self.unfinished)
    }
}

/// One block of one tile of `x`, and all weights.
struct Pass<'a> {
    /// See [`Tile::x`].
    x: &'a [u8],
    /// The whole matrix.
    w: &'a [u8],
    /// The first of the rows of `x`, and how many.
    first: usize,
    height: usize,
    /// Rows of weights in a tile.
    width: usize,
    columns: Range<usize>,
    /// Which tile of `x` it is, and of how many.
    tile: usize,
    tiles: usize,
}

/// Columns of a block: what fits of `k`, in whole steps and cache lines.
fn block_columns<A: Arithmetic>(height: usize, k: usize) -> usize {
    const MULTIPLE: usize = 32;
    let fitting = X_BLOCK_BYTES / (LINE_BYTES * A::PARTS * height) * A::COLUMNS;
    if k <= fitting { k } else { (fitting / MULTIPLE).max(1) * MULTIPLE }
}
