//! Matrix multiplication: `y[m, n] = sum over k of x[m, k] * w[n, k]`.
//!
//! Each `(m, n)` is summed in one order, whatever the batch, the tile, the threads or the instruction set: [`float`] and
//! [`integer`] say which. So a row's result has the same bits alone and in any batch. Here the work is shared out.

mod float;
mod integer;
mod tiles;

use super::Cpu;
use super::input::{Form, Input};
use super::packed::{Format, PANEL, Packed};
use super::shared::Shared;
use super::simd::integer::IntegerIsa;
use super::simd::{Isa, LANES, Simd};
use tiles::{MOST_ACCUMULATORS, Registers, Tile};

/// Bytes of weights a task takes at most, unless one tile of all columns has more.
const TASK_BYTES: usize = 256 << 10;
/// Multiplications of a task at most, likewise: tens of microseconds, so that threads end together.
const TASK_PRODUCTS: usize = 16 << 20;
/// Multiplications below which waking another thread costs more than it gives.
const ALONE: usize = 64 << 10;

/// A matrix and its bias, stacked with others along the output.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// `[rows, cols]`.
    pub weights: &'a Packed,
    /// `[rows]`.
    pub bias: Option<&'a [f32]>,
}

impl<'a> From<&'a Packed> for Linear<'a> {
    fn from(weights: &'a Packed) -> Self {
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
        let is_bf16 = x.form() == Form::Bf16;
        assert!(linear.weights.layout().format.form(is_bf16) == x.form(), "x has the form the weights take");
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
                // How far away this thread's next task begins, if all are equally fast.
                let next = rows_per_task * threads;
                let next = (first + next < linear.weights.rows()).then_some(next);
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
fn rows_per_task(cpu: &Cpu, m: usize, rows: usize, weights: &Packed) -> usize {
    if m.saturating_mul(rows).saturating_mul(weights.cols()) < ALONE {
        return rows.max(1);
    }
    let layout = weights.layout();
    let by_bytes = TASK_BYTES * PANEL / layout.panel_bytes();
    let by_threads = rows / (cpu.threads.count() * 8); // eight tasks a thread even out their speeds
    let by_products = TASK_PRODUCTS / (m * layout.cols);
    let multiple = registers_for(layout.format, MOST_ACCUMULATORS).row_multiple(m);
    (by_bytes.min(by_threads).min(by_products) / multiple).max(1) * multiple
}

/// What so many registers have room for. Sums of a group of columns stand beside those of all. Integers, and whatever has the
/// widest register file, take two panels at least, so that what is read of `x` serves both.
const fn registers_for(format: Format, accumulators: usize) -> Registers {
    match (format.has_groups(), format.is_integer() || accumulators == MOST_ACCUMULATORS) {
        (true, _) => Registers::new(accumulators / 2, 2),
        (false, true) => Registers::new(accumulators, 2),
        (false, false) => Registers::new(accumulators, 1),
    }
}

/// Some rows of one matrix, for all rows of `x`.
struct Part<'a> {
    x: &'a Input,
    linear: Linear<'a>,
    first: usize,
    count: usize,
    /// Rows of weights from these ones to those of the task that this thread will probably take next.
    next: Option<usize>,
    y: &'a Shared<'a, f32>,
    stride: usize,
    column: usize,
    write: Write,
}

impl Part<'_> {
    /// Calls `take` for each of its tiles.
    #[inline(always)]
    fn for_each_tile(&self, registers: Registers, take: impl FnMut(Tile)) {
        assert!(self.first.is_multiple_of(PANEL), "tasks start at a panel");
        let panel_bytes = self.linear.weights.layout().panel_bytes();
        let weights = self.weights().as_ptr();
        let next = self.next.map(|rows| rows / PANEL * panel_bytes);
        registers.for_each_tile(self.x.rows(), self.count.div_ceil(PANEL), panel_bytes, weights, next, take);
    }

    /// The matrix's panels from this part's first on.
    fn weights(&self) -> &[u8] {
        let packed = self.linear.weights;
        &packed.values()[self.first / PANEL * packed.layout().panel_bytes()..]
    }

    fn run(&self, isa: Isa, integers: IntegerIsa) {
        match self.x.form() {
            Form::Int8 => integers.run(integer::Product { part: self }),
            Form::Bf16 => isa.run(float::PairProduct { part: self }),
            Form::F32 => isa.run(float::Product { part: self }),
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

    /// Writes a tile's sums.
    #[inline(always)]
    fn put_tile<S: Simd, const MR: usize, const NR: usize>(&self, s: S, tile: &Tile, sums: [[S::V; NR]; MR]) {
        for (i, sums) in sums.into_iter().enumerate() {
            // SAFETY: one at a time.
            let y = unsafe { self.y(tile.first + i) };
            for (j, sum) in sums.into_iter().enumerate() {
                let column = (tile.panel + j * tile.apart) * PANEL;
                self.put_lanes(s, &mut y[column..], column, sum);
            }
        }
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
