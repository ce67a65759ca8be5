//! Matrix multiplication: `y[m, n] = sum over k of x[m, k] * w[n, k]`.
//!
//! Each `(m, n)` is summed in one order, whatever the batch, the tile, the threads or the instruction set: lane `j` of
//! sixteen takes every `k` that is `j` modulo 16, ascending, by fused multiply-add; then [`super::simd::Simd::sum`].
//! So a row's result has the same bits alone and in any batch. Tiles keep up to 24 such sums in registers.

mod tile;

use super::Cpu;
use super::matrix::{Storage, WeightMatrix};
use super::shared::Shared;
use super::simd::{Kernel, LANES, Simd};
pub(super) use tile::PREFETCH_BYTES;
use tile::{Bf16, Element, F16, F32, Tile};

/// Rows of weights a task takes are a multiple of this, so that tiles of 3 and of 4 rows fit.
const ROW_MULTIPLE: usize = 12;
/// Bytes of weights a task takes at most: they stay in the second-level cache while the rows of `x` pass by.
const TASK_BYTES: usize = 256 << 10;
/// Bytes of `x` that stay in the first-level cache while a task's weights pass by: a tile's rows, or a block of their
/// columns.
const X_BLOCK_BYTES: usize = 32 << 10;
/// Multiplications below which waking another thread costs more than it gives.
const ALONE: usize = 64 << 10;

/// A matrix and its bias, stacked with others along the output.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// `[rows, cols]`.
    pub weights: &'a WeightMatrix,
    /// `[rows]`.
    pub bias: Option<&'a [f32]>,
}

impl<'a> From<&'a WeightMatrix> for Linear<'a> {
    fn from(weights: &'a WeightMatrix) -> Self {
        Self { weights, bias: None }
    }
}

/// What happens to a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// It replaces what `y` holds.
    Set,
    /// It is added to what `y` holds: the residual connection.
    Add,
}

/// Multiplies `x` `[m, cols]` by the matrices in `stack`, whose outputs lie side by side in `y` `[m, sum of rows]`.
///
/// # Panics
/// If the shapes disagree.
pub fn matmul(cpu: &mut Cpu, x: &[f32], stack: &[Linear<'_>], y: &mut [f32], write: Write) {
    let Some(cols) = stack.first().map(|linear| linear.weights.cols()) else { return };
    let rows: usize = stack.iter().map(|linear| linear.weights.rows()).sum();
    assert!(cols > 0 && x.len().is_multiple_of(cols), "x is [m, cols]");
    let m = x.len() / cols;
    assert_eq!(y.len(), m * rows, "y is [m, rows]");
    for linear in stack {
        assert_eq!(linear.weights.cols(), cols, "stacked matrices have the same inputs");
        assert!(linear.bias.is_none_or(|bias| bias.len() == linear.weights.rows()), "a bias for each row");
    }
    if m == 0 {
        return;
    }
    let rows_per_task = rows_per_task(cpu, m, rows, stack[0].weights);
    let tasks_of = |linear: &Linear<'_>| linear.weights.rows().div_ceil(rows_per_task);
    let tasks = stack.iter().map(tasks_of).sum();
    let (isa, shared) = (cpu.isa, Shared::new(y));
    let work = |mut task, _| {
        let mut column = 0;
        for linear in stack {
            if task < tasks_of(linear) {
                let first = task * rows_per_task;
                let count = rows_per_task.min(linear.weights.rows() - first);
                return isa.run(Part {
                    x,
                    m,
                    linear: *linear,
                    first,
                    count,
                    y: &shared,
                    stride: rows,
                    column,
                    write,
                });
            }
            task -= tasks_of(linear);
            column += linear.weights.rows();
        }
    };
    if rows_per_task == rows {
        (0..tasks).for_each(|task| work(task, 0))
    } else {
        cpu.threads.run(tasks, work)
    }
}

/// All `rows` if they are too little work to share out.
fn rows_per_task(cpu: &Cpu, m: usize, rows: usize, weights: &WeightMatrix) -> usize {
    if m.saturating_mul(rows).saturating_mul(weights.cols()) < ALONE {
        return rows.max(1);
    }
    let by_bytes = TASK_BYTES / weights.row_bytes();
    let by_threads = rows / (cpu.threads.count() * 8); // eight tasks a thread even out their speeds
    by_bytes.min(by_threads).next_multiple_of(ROW_MULTIPLE).max(ROW_MULTIPLE)
}

/// Some rows of one matrix, for all rows of `x`.
struct Part<'a> {
    x: &'a [f32],
    m: usize,
    linear: Linear<'a>,
    first: usize,
    count: usize,
    y: &'a Shared<'a, f32>,
    stride: usize,
    column: usize,
    write: Write,
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.linear.weights.storage() {
            Storage::Bf16(bytes) => self.all_tiles::<S, Bf16>(simd, bytes),
            Storage::F16(bytes) => self.all_tiles::<S, F16>(simd, bytes),
            Storage::F32(bytes) => self.all_tiles::<S, F32>(simd, bytes),
        }
    }
}

impl Part<'_> {
    /// All tiles: `x` in tiles of nearly equal height, and for each of them the weights in tiles of equal width.
    #[inline(always)]
    fn all_tiles<S: Simd, E: Element>(&self, s: S, bytes: &[u8]) {
        let k = self.linear.weights.cols();
        let highest = if S::ACCUMULATORS >= 24 { 8 } else { 2 };
        let tiles = self.m.div_ceil(highest);
        let (height, taller) = (self.m / tiles, self.m % tiles);
        let tallest = height + usize::from(taller > 0);
        let widest = match tallest {
            1 => 4,
            2..=6 if S::ACCUMULATORS >= 24 => 4,
            _ => 3,
        };
        let block = tile::block_columns(X_BLOCK_BYTES / (4 * tallest), k);
        // With one tile of x, each of a tile's weight rows walks through its own part of the task's: several long streams
        // come from memory faster than one. With more, neighbours lie side by side in y.
        let full = self.count / widest;
        // Unfinished sums, where the columns take more than one block.
        let mut unfinished = vec![0.0; if block < k { self.count * tallest * LANES } else { 0 }];
        let mut m = 0;
        for tile in 0..tiles {
            let height = height + usize::from(tile < taller);
            let x = &self.x[m * k..][..height * k];
            self.prefetch_y(s, m, height);
            for from in (0..k).step_by(block) {
                let columns = from..k.min(from + block);
                for i in 0..full + self.count % widest {
                    // One full tile after another, then single rows.
                    let (width, place) =
                        if i < full { (widest, i * widest) } else { (1, full * (widest - 1) + i) };
                    let (n, apart) = if i < full && tiles == 1 { (i, full) } else { (place, 1) };
                    let last = self.first + n + (width - 1) * apart;
                    let w = &bytes[(self.first + n) * k * E::BYTES..(last + 1) * k * E::BYTES];
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
            // SAFETY: as in `put`.
            let y = unsafe { self.y.part(row * self.stride + self.column + self.first, self.count) };
            for line in y.chunks(tile::LINE / size_of::<f32>()) {
                s.prefetch(line.as_ptr().cast());
            }
        }
    }

    /// Writes a tile's sums: of every `apart`-th weight row from `n` on, and rows of `x` from `m` on.
    #[inline(always)]
    fn put<const MR: usize, const NR: usize>(&self, m: usize, n: usize, apart: usize, sums: [[f32; NR]; MR]) {
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: tasks take disjoint rows of weights, which are disjoint columns of y.
            let y = unsafe { self.y.part((m + i) * self.stride + self.column + self.first, self.count) };
            for (j, sum) in sums.iter().enumerate() {
                let n = n + j * apart;
                let sum = self.linear.bias.map_or(*sum, |bias| sum + bias[self.first + n]);
                y[n] = if self.write == Write::Add { y[n] + sum } else { sum };
            }
        }
    }
}

#[cfg(test)]
mod tests;
