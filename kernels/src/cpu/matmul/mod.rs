//! Matrix multiplication: `y[m, n] = sum over k of x[m, k] * w[n, k]`.
//!
//! Each `(m, n)` is summed in one order, whatever the batch, the tile, the threads or the instruction set: lane `j` of
//! sixteen takes every `k` that is `j` modulo 16, ascending, by fused multiply-add; then [`super::simd::Simd::sum`].
//! So a row's result has the same bits alone and in any batch. Tiles keep up to 24 such sums in registers.

mod tile;

use super::Cpu;
use super::matrix::{Storage, WeightMatrix};
use super::shared::Shared;
use super::simd::{Kernel, Simd};
use tile::{Bf16, Element, F16, F32, Tile};

/// Rows of weights a task takes are a multiple of this, so that tiles of 3 and of 4 rows fit.
const ROW_MULTIPLE: usize = 12;
/// Bytes of weights a task takes at most: half of a 1 MiB second-level cache at prefill, and enough to share out at decode.
const TASK_BYTES: usize = 256 << 10;
/// Bytes of `x` that are kept in the second-level cache while a task's weights pass by.
const X_BLOCK_BYTES: usize = 768 << 10;
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
    cpu.threads.run(tasks, |mut task, _| {
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
    });
}

fn rows_per_task(cpu: &Cpu, m: usize, rows: usize, weights: &WeightMatrix) -> usize {
    if m.saturating_mul(rows).saturating_mul(weights.cols()) < ALONE {
        return rows;
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
    #[inline(always)]
    fn all_tiles<S: Simd, E: Element>(&self, simd: S, bytes: &[u8]) {
        let k = self.linear.weights.cols();
        let highest = if S::ACCUMULATORS >= 24 { 8 } else { 2 };
        let block = (X_BLOCK_BYTES / (4 * k)).next_multiple_of(highest).max(highest);
        let mut from = 0;
        while from < self.m {
            let block = block.min(self.m - from);
            self.block_tiles::<S, E>(simd, bytes, from, block, highest);
            from += block;
        }
    }

    /// All weight rows of this part for rows `from..from + block` of `x`, in tiles of nearly equal height.
    #[inline(always)]
    fn block_tiles<S: Simd, E: Element>(
        &self,
        s: S,
        bytes: &[u8],
        from: usize,
        block: usize,
        highest: usize,
    ) {
        let k = self.linear.weights.cols();
        let row_bytes = k * E::BYTES;
        let tiles = block.div_ceil(highest);
        let (height, taller) = (block / tiles, block % tiles);
        let tallest = height + usize::from(taller > 0);
        let widest = match tallest {
            1 => 4,
            2..=6 if S::ACCUMULATORS >= 24 => 4,
            _ => 3,
        };
        let mut n = 0;
        while n < self.count {
            let width = if self.count - n >= widest { widest } else { 1 };
            let mut m = from;
            for tile in 0..tiles {
                let height = height + usize::from(tile < taller);
                let w = &bytes[(self.first + n) * row_bytes..][..width * row_bytes];
                let t = Tile { x: &self.x[m * k..][..height * k], w, k, prefetch: tile == 0 };
                macro_rules! heights {
                    ($(($mr:literal, $nr:literal)),*) => {
                        match (height, width) {
                            $(($mr, $nr) if $mr * $nr <= S::ACCUMULATORS =>
                                self.put::<$mr, $nr>(m, n, t.sums::<S, E, $mr, $nr>(s)),)*
                            _ => unreachable!("every tile height and width has an arm"),
                        }
                    };
                }
                heights!(
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
                m += height;
            }
            n += width;
        }
    }

    /// Writes a tile's sums, weight rows from `n` on, rows of `x` from `m` on.
    #[inline(always)]
    fn put<const MR: usize, const NR: usize>(&self, m: usize, n: usize, sums: [[f32; NR]; MR]) {
        let n = self.first + n;
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: tasks take disjoint rows of weights, which are disjoint columns of y.
            let y = unsafe { self.y.part((m + i) * self.stride + self.column + n, NR) };
            for j in 0..NR {
                let sum = self.linear.bias.map_or(sums[j], |bias| sums[j] + bias[n + j]);
                y[j] = if self.write == Write::Add { y[j] + sum } else { sum };
            }
        }
    }
}

#[cfg(test)]
mod tests;
