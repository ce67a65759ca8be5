//! Matrix multiplication: `y[m, n] = sum over k of x[m, k] * w[n, k]`.
//!
//! Each `(m, n)` is summed in one order, whatever the batch, the tile, the threads or the instruction set: [`float`] and
//! [`integer`] say which. So a row's result has the same bits alone and in any batch. Here the work is shared out.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

mod float;
mod gated;
mod integer;
mod room;
mod tiles;

use std::ops::Range;

use super::Cpu;
use super::input::{Form, Input};
use super::packed::{Format, Layout, PANEL, Packed};
use super::prefetch;
use super::shared::Shared;
use super::simd::integer::IntegerIsa;
use super::simd::{Isa, LANES, Simd};
pub use gated::gated_matmul;
use room::{ProductId, Room, Share};
use tiles::{HIGHEST, MOST_ACCUMULATORS, Panels, Pass, Registers, Tile};

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

impl Linear<'_> {
    /// Panics unless it can be multiplied with `x`.
    fn check(&self, x: &Input) {
        let Layout { format, cols, rows } = self.weights.layout();
        assert!(cols > 0 && x.width() == cols, "x is [m, cols]");
        assert!(format.form(x.form() == Form::Bf16) == x.form(), "x has the form the weights take");
        assert!(self.bias.is_none_or(|bias| bias.len() == rows), "a bias for each row");
    }

    /// The panels from `row`'s on; `None` past the end.
    fn weights_from(&self, row: usize) -> Option<*const u8> {
        let at = row / PANEL * self.weights.layout().panel_bytes();
        Some(self.weights.values().get(at..)?.first()?)
    }
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
    let Some(first) = stack.first() else { return };
    let rows: usize = stack.iter().map(|linear| linear.weights.rows()).sum();
    let m = x.rows();
    assert_eq!(y.len(), m * rows, "y is [m, rows]");
    stack.iter().for_each(|linear| linear.check(x));
    if m == 0 {
        return;
    }
    let panels = stack.iter().map(|linear| linear.weights.layout().panels()).sum();
    let shares = Shares::new(cpu, m, panels, first.weights);
    let product = ProductId::new();
    let (isa, shared) = (cpu.isa, Shared::new(y));
    cpu.threads.run(shares.tasks(), |task, _| {
        let (panels, pass) = shares.task(task);
        let share = (product, panels.start);
        // Of panels and outputs before each matrix.
        let (mut before, mut column) = (0, 0);
        for linear in stack {
            let Layout { rows: outputs, .. } = linear.weights.layout();
            let end = before + linear.weights.layout().panels();
            let (from, to) = (panels.start.clamp(before, end), panels.end.clamp(before, end));
            if from < to {
                let first = (from - before) * PANEL;
                let count = outputs.min((to - before) * PANEL) - first;
                // Unless this thread's share ends here.
                let next = linear.weights_from(first + count.next_multiple_of(PANEL));
                let x_rows = pass.rows(m);
                let y =
                    Destination { values: &shared, stride: rows, at: x_rows.start * rows + column + first };
                Part { share, x, rows: x_rows, linear: *linear, first, count, next, pass, y, write }
                    .run(isa, integers);
            }
            (before, column) = (end, column + outputs);
        }
    });
}

/// How the panels of a product are shared out: to each thread as many as to the others, in tasks of some panels and, where those
/// are too much for many rows of `x`, some of the rows.
struct Shares {
    panels: usize,
    threads: usize,
    /// Panels of a tile: tasks start at multiples of as many in their thread's share, and the last one takes what is over.
    multiple: usize,
    /// Such multiples of a task at most.
    most: usize,
    /// Tasks that take the same panels, one after another, each for its part of the rows.
    passes: usize,
}

impl Shares {
    /// Of so many panels like those of `weights`, for `m` rows of `x`. One task has all if they are too little work to share out.
    fn new(cpu: &Cpu, m: usize, panels: usize, weights: &Packed) -> Self {
        let layout = weights.layout();
        let multiple = registers_for(layout.format, MOST_ACCUMULATORS).panel_multiple(m);
        if m.saturating_mul(panels * PANEL).saturating_mul(layout.cols) < ALONE {
            return Self { panels, threads: 1, multiple, most: panels.max(1), passes: 1 };
        }
        let threads = cpu.threads.count();
        let by_bytes = TASK_BYTES / layout.panel_bytes();
        let by_threads = panels / (threads * 8); // eight tasks a thread even out their speeds
        let by_products = TASK_PRODUCTS / (m * layout.cols * PANEL);
        let most = (by_bytes.min(by_threads).min(by_products) / multiple).max(1);
        let passes = (m * layout.cols * PANEL * multiple / TASK_PRODUCTS).clamp(1, m.div_ceil(4 * HIGHEST));
        Self { panels, threads, multiple, most, passes }
    }

    /// Multiples in the shares of all threads.
    fn multiples_of_each(&self) -> usize {
        (self.panels / self.threads / self.multiple).max(1)
    }

    /// Parts of a thread's share.
    fn parts_of_each(&self) -> usize {
        self.multiples_of_each().div_ceil(self.most)
    }

    /// Tasks of all threads, those of the first one first.
    fn tasks(&self) -> usize {
        self.threads * self.parts_of_each() * self.passes
    }

    /// The panels of a task, which some thread may have none of, and its part of the rows.
    fn task(&self, task: usize) -> (Range<usize>, Pass) {
        let (part, pass) = (task / self.passes, Pass { index: task % self.passes, of: self.passes });
        let (thread, part) = (part / self.parts_of_each(), part % self.parts_of_each());
        let [start, end] = [thread, thread + 1].map(|thread| self.panels * thread / self.threads);
        let bound = |part: usize| match part == self.parts_of_each() {
            true => end,
            false => end.min(start + self.multiples_of_each() * part / self.parts_of_each() * self.multiple),
        };
        (bound(part)..bound(part + 1), pass)
    }

    /// Panels of a task at most.
    fn widest(&self) -> usize {
        // A share may have one panel more than another, and less than a multiple besides.
        self.panels.div_ceil(self.threads).min((self.most + 1) * self.multiple)
    }

    /// Rows of `x` of a task at most, of `m`.
    fn highest(&self, m: usize) -> usize {
        (m.div_ceil(HIGHEST).div_ceil(self.passes) * HIGHEST).min(m)
    }
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

/// Some rows of one matrix, for some rows of `x`.
struct Part<'a> {
    share: Share,
    x: &'a Input,
    rows: Range<usize>,
    linear: Linear<'a>,
    first: usize,
    count: usize,
    /// Where this thread will probably read on.
    next: Option<*const u8>,
    pass: Pass,
    /// Of the first of `rows`.
    y: Destination<'a>,
    write: Write,
}

/// Where a part's results go: rows of `count` values.
#[derive(Clone, Copy)]
struct Destination<'a> {
    values: &'a Shared<'a, f32>,
    /// Values from one row to the next.
    stride: usize,
    /// Where the first row starts.
    at: usize,
}

impl Part<'_> {
    /// Calls `take` for each of its tiles.
    #[inline(always)]
    fn for_each_tile(&self, registers: Registers, take: impl FnMut(Tile)) {
        assert!(self.first.is_multiple_of(PANEL), "tasks start at a panel");
        let layout = self.linear.weights.layout();
        let weights = Panels {
            at: self.weights().as_ptr(),
            panels: self.count.div_ceil(PANEL),
            panel_bytes: layout.panel_bytes(),
            next: self.next,
            pass: self.pass,
            soon: prefetch::distance(layout.format.bits()),
        };
        registers.for_each_tile(self.rows.len(), weights, take);
    }

    /// The matrix's panels from this part's first on.
    fn weights(&self) -> &[u8] {
        let packed = self.linear.weights;
        &packed.values()[self.first / PANEL * packed.layout().panel_bytes()..]
    }

    /// Room for what becomes of a tile's panels, of so many bytes each, and whether it is there already.
    #[inline(always)]
    fn place<'r>(&self, room: &'r mut Room, tile: &Tile, panel_bytes: usize) -> (&'r mut [u8], bool) {
        room.enter(self.share);
        if self.pass.of == 1 && tile.first == 0 {
            room.forget(); // nobody will meet the panels before again
        }
        let at =
            self.weights().as_ptr().wrapping_add(tile.panel * self.linear.weights.layout().panel_bytes());
        room.place(at, tile.width, tile.width * panel_bytes)
    }

    fn run(&self, isa: Isa, integers: IntegerIsa) {
        match self.x.form() {
            Form::Int8 => integers.run(integer::Product { part: self }),
            Form::Bf16 => isa.run(float::PairProduct { part: self }),
            Form::F32 => isa.run(float::Product { part: self }),
        }
    }

    /// Writes a tile's sums.
    #[inline(always)]
    fn put_tile<S: Simd, const MR: usize, const NR: usize>(
        &self,
        s: S,
        tile: &Tile,
        mut sums: [[S::V; NR]; MR],
    ) {
        let (column, apart) = (tile.panel * PANEL, tile.apart * PANEL);
        let width = (NR - 1) * apart + LANES;
        if column + width > self.count {
            return self.put_edge(s, tile, &sums);
        }
        if let Some(bias) = self.linear.bias {
            let bias = &bias[self.first + column..][..width];
            for n in 0..NR {
                // SAFETY: the last panel's sixteen values end where the slice does.
                let bias = unsafe { s.load(bias[n * apart..].as_ptr()) };
                for m in 0..MR {
                    sums[m][n] = s.add(sums[m][n], bias);
                }
            }
        }
        let Destination { values, stride, at } = self.y;
        let y = values.pointer(at + tile.first * stride + column, (MR - 1) * stride + width);
        for m in 0..MR {
            for n in 0..NR {
                // SAFETY: the last row's last panel ends where the range does. Tasks take disjoint rows of weights, which are
                // disjoint columns of y.
                unsafe {
                    let to = y.add(m * stride + n * apart);
                    if self.write == Write::Add {
                        sums[m][n] = s.add(s.load(to), sums[m][n]);
                    }
                    s.store(sums[m][n], to);
                }
            }
        }
    }

    /// [`Part::put_tile`] where the last panel is not full.
    #[inline(always)]
    fn put_edge<S: Simd, const MR: usize, const NR: usize>(
        &self,
        s: S,
        tile: &Tile,
        sums: &[[S::V; NR]; MR],
    ) {
        for (m, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                let mut values = [0.0; LANES];
                // SAFETY: sixteen values.
                unsafe { s.store(*sum, values.as_mut_ptr()) };
                self.put(tile.first + m, (tile.panel + n * tile.apart) * PANEL, &values);
            }
        }
    }

    /// Writes as many of `sums` as there are outputs from this part's `column` on.
    #[inline(never)]
    fn put(&self, row: usize, column: usize, sums: &[f32; LANES]) {
        let count = LANES.min(self.count - column);
        // SAFETY: one at a time, and tasks take disjoint columns.
        let y = unsafe { self.y.values.part(self.y.at + row * self.y.stride + column, count) };
        for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
            let sum = self.linear.bias.map_or(*sum, |bias| sum + bias[self.first + column + i]);
            *y = if self.write == Write::Add { *y + sum } else { sum };
        }
    }
}

#[cfg(test)]
mod tests;
