//! Matrix multiplication: `y[m, n] = sum over k of x[m, k] * w[n, k]`.
//!
//! Each `(m, n)` is summed in one order, whatever the batch, the tile, the threads or the instruction set: [`float`] and
//! [`integer`] say which. So a row's result has the same bits alone and in any batch. Here the work is shared out.

mod float;
mod integer;

use super::Cpu;
use super::input::{Form, Input};
use super::matrix::{Storage, WeightMatrix};
use super::shared::Shared;
use super::simd::integer::IntegerIsa;
use super::simd::{Isa, LANES, Simd};

/// Bytes of weights a task takes at most: they stay in the second-level cache while the rows of `x` pass by.
const TASK_BYTES: usize = 256 << 10;
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

/// Multiplies `x` `[m, cols]`, in the form that the weights ask for, by the matrices in `stack`, whose outputs lie side by side in `y` `[m, sum of rows]`.
///
/// # Panics
/// If the shapes disagree.
pub fn matmul(cpu: &mut Cpu, x: &Input, stack: &[Linear<'_>], y: &mut [f32], write: Write) {
    let integers = cpu.isa.integers();
    matmul_on(cpu, integers, x, stack, y, write);
}

/// [`matmul`] on a given instruction set for integers.
fn matmul_on(
    cpu: &mut Cpu,
    integers: IntegerIsa,
    x: &Input,
    stack: &[Linear<'_>],
    y: &mut [f32],
    write: Write,
) {
    let Some(cols) = stack.first().map(|linear| linear.weights.cols()) else { return };
    let rows: usize = stack.iter().map(|linear| linear.weights.rows()).sum();
    assert!(cols > 0 && x.width() == cols, "x is [m, cols]");
    let m = x.rows();
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
    let (isa, threads, shared) = (cpu.isa, cpu.threads.count(), Shared::new(y));
    let work = |mut task, _| {
        let mut column = 0;
        for linear in stack {
            if task < tasks_of(linear) {
                let first = task * rows_per_task;
                let count = rows_per_task.min(linear.weights.rows() - first);
                // Where this thread's next task begins, if all are equally fast.
                let next = rows_per_task * threads;
                let next = (first + next < linear.weights.rows()).then(|| next * linear.weights.row_bytes());
                let part =
                    Part { x, linear: *linear, first, count, next, y: &shared, stride: rows, column, write };
                return part.run(isa, integers);
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
    if let Storage::Packed(packed) = weights.storage() {
        let multiple = integer::row_multiple(m, packed.layout().format);
        return (by_bytes.min(by_threads) / multiple).max(1) * multiple;
    }
    let multiple = float::row_multiple(m);
    by_bytes.min(by_threads).next_multiple_of(multiple).max(multiple)
}

/// Heights of tiles: nearly equal, the taller ones first.
#[derive(Clone, Copy)]
struct Heights {
    rows: usize,
    tiles: usize,
}

/// The fewest tiles of at most `highest` rows.
fn tile_heights(rows: usize, highest: usize) -> Heights {
    Heights { rows, tiles: rows.div_ceil(highest) }
}

impl Heights {
    fn tallest(self) -> usize {
        self.rows.div_ceil(self.tiles)
    }
}

impl Iterator for Heights {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let height = (self.tiles > 0).then(|| self.tallest())?;
        (self.rows, self.tiles) = (self.rows - height, self.tiles - 1);
        Some(height)
    }
}

/// Some rows of one matrix, for all rows of `x`.
struct Part<'a> {
    x: &'a Input,
    linear: Linear<'a>,
    first: usize,
    count: usize,
    /// Bytes from these rows' weights to those of the task that this thread will probably take next.
    next: Option<usize>,
    y: &'a Shared<'a, f32>,
    stride: usize,
    column: usize,
    write: Write,
}

impl Part<'_> {
    fn run(&self, isa: Isa, integers: IntegerIsa) {
        match self.linear.weights.storage() {
            Storage::Packed(packed) => integers.run(integer::Product { part: self, packed }),
            Storage::Bf16(weights) if self.x.form() == Form::Bf16 => {
                isa.run(float::PairProduct { part: self, weights })
            }
            _ => isa.run(float::Product { part: self }),
        }
    }

    /// Row `m` of this part's columns of `y`.
    ///
    /// # Safety
    /// Only one is borrowed at a time.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // tasks take disjoint rows of weights, which are disjoint columns of y
    unsafe fn y(&self, m: usize) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { self.y.part(m * self.stride + self.column + self.first, self.count) }
    }

    /// Writes the sum of this part's output `n` to `y`, one of [`Part::y`].
    #[inline(always)]
    fn put(&self, y: &mut [f32], n: usize, sum: f32) {
        let sum = self.linear.bias.map_or(sum, |bias| sum + bias[self.first + n]);
        y[n] = if self.write == Write::Add { y[n] + sum } else { sum };
    }

    /// Writes the sums of up to sixteen outputs, from this part's `n` on, to `to`, which starts there.
    #[inline(always)]
    fn put_lanes<S: Simd>(&self, s: S, to: &mut [f32], n: usize, mut sum: S::V) {
        let count = to.len().min(LANES);
        // SAFETY: `to` has `count` values, and so has the bias from `first + n` on.
        unsafe {
            if let Some(bias) = self.linear.bias {
                sum = s.add(sum, s.load_part(bias[self.first + n..][..count].as_ptr(), count));
            }
            if self.write == Write::Add {
                sum = s.add(s.load_part(to.as_ptr(), count), sum);
            }
            s.store_part(sum, to.as_mut_ptr(), count);
        }
    }
}

#[cfg(test)]
mod tests;
