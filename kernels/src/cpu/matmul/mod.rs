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
pub use gated::{Gated, gated_matmul};
use room::{ProductId, Room, Share};
use tiles::{HIGHEST, MOST_ACCUMULATORS, Panels, Pass, Registers, Streams, Tile, full_tiles};

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
    let rows: usize = stack.iter().map(|linear| linear.weights.rows()).sum();
    let m = x.rows();
    assert_eq!(y.len(), m * rows, "y is [m, rows]");
    stack.iter().for_each(|linear| linear.check(x));
    if m == 0 || stack.is_empty() {
        return;
    }
    let format = stack[0].weights.layout().format;
    let registers = match format.is_integer() {
        true => integers.run(integer::RegistersFor(format)),
        false => cpu.isa.run(float::RegistersForAll),
    };
    let shares = Shares::new(cpu, m, stack).in_streams(registers.width_of_single(m));
    let product = ProductId::new();
    let (isa, shared) = (cpu.isa, Shared::new(y));
    let work = |task: usize| {
        let Task { panels, streams, pass } = shares.task(task);
        let share = (product, panels.start);
        // Of panels and outputs before each matrix.
        let (mut before, mut column) = (0, 0);
        for linear in stack {
            let Layout { rows: outputs, .. } = linear.weights.layout();
            let end = before + linear.weights.layout().panels();
            if (before..end).contains(&panels.start) && !panels.is_empty() {
                let first = (panels.start - before) * PANEL;
                let count = outputs.min((panels.end - before) * PANEL) - first;
                // Unless this thread's share ends here.
                let next = linear.weights_from(first + count.next_multiple_of(PANEL));
                let x_rows = pass.rows(m);
                let at = x_rows.start * rows + column + first;
                let y = Destination { values: &shared, stride: rows, at, is_near: false };
                let (linear, rows) = (*linear, x_rows);
                return Part { share, x, rows, linear, first, count, streams, next, pass, y, write }
                    .run(isa, integers);
            }
            (before, column) = (end, column + outputs);
        }
    };
    match shares.threads {
        1 => (0..shares.tasks()).for_each(work),
        _ => cpu.threads.run(shares.tasks(), |task, _| work(task)),
    }
}

/// How the panels of a product are shared out: to each thread as many as to the others, in tasks of some panels of one matrix and,
/// where those are too much for many rows of `x`, some of the rows.
struct Shares<'a> {
    stack: &'a [Linear<'a>],
    /// Of all matrices.
    panels: usize,
    threads: usize,
    cut: Cut,
    /// Parts of a thread's share at most.
    parts: usize,
}

/// How a thread's share is cut.
#[derive(Clone, Copy)]
struct Cut {
    /// Panels of a tile: parts start at multiples of as many in the share of a matrix, and the last one takes what is over.
    multiple: usize,
    /// Such multiples of a part at most.
    most: usize,
    /// Tasks of a part, one after another, each for some of the rows.
    passes: usize,
    /// Streams that the share of a matrix is read in, each part taking some of each; `None` if its panels are to lie side by side.
    streams: Option<usize>,
}

/// What is computed at once.
struct Task {
    /// Its panels, which some thread may have none of; with streams, up to the last one of its share.
    panels: Range<usize>,
    streams: Option<Streams>,
    /// Its part of the rows.
    pass: Pass,
}

impl<'a> Shares<'a> {
    /// Of the panels of `stack`, for `m` rows of `x`. One thread has all if they are too little work to share out.
    fn new(cpu: &Cpu, m: usize, stack: &'a [Linear<'a>]) -> Self {
        let Some(layout) = stack.first().map(|linear| linear.weights.layout()) else {
            return Self::cut(stack, 1, Cut { multiple: 1, most: 1, passes: 1, streams: None });
        };
        let panels: usize = stack.iter().map(|linear| linear.weights.layout().panels()).sum();
        let multiple = registers_for(layout.format, MOST_ACCUMULATORS).panel_multiple(m);
        if m.saturating_mul(panels * PANEL).saturating_mul(layout.cols) < ALONE {
            return Self::cut(stack, 1, Cut { multiple, most: panels.max(1), passes: 1, streams: None });
        }
        let threads = cpu.threads.count();
        let by_bytes = TASK_BYTES / layout.panel_bytes();
        let by_threads = panels / (threads * 8); // eight tasks a thread even out their speeds
        let by_products = TASK_PRODUCTS / (m * layout.cols * PANEL);
        let most = (by_bytes.min(by_threads).min(by_products) / multiple).max(1);
        let passes = (m * layout.cols * PANEL * multiple / TASK_PRODUCTS).clamp(1, m.div_ceil(4 * HIGHEST));
        Self::cut(stack, threads, Cut { multiple, most, passes, streams: None })
    }

    /// The same for one tile of rows in the streams that it reads, which go on from task to task: a small task's are too short for what
    /// is asked for ahead.
    fn in_streams(mut self, width: Option<usize>) -> Self {
        self.cut.streams = width;
        self
    }

    fn cut(stack: &'a [Linear<'a>], threads: usize, cut: Cut) -> Self {
        let panels = stack.iter().map(|linear| linear.weights.layout().panels()).sum();
        let shares = Self { stack, panels, threads, cut, parts: 0 };
        let parts_of = |thread| shares.pieces(thread).map(|piece| cut.parts_of(piece.len())).sum();
        Self { parts: (0..threads).map(parts_of).max().unwrap_or_default(), ..shares }
    }

    /// A thread's share of each matrix, where it has one, in panels of the whole stack.
    fn pieces(&self, thread: usize) -> impl Iterator<Item = Range<usize>> {
        let [start, end] = [thread, thread + 1].map(|thread| self.panels * thread / self.threads);
        let ends = self.stack.iter().scan(0, |end, linear| {
            *end += linear.weights.layout().panels();
            Some(*end)
        });
        ends.scan(start, move |from, matrix_end| {
            let piece = *from..matrix_end.clamp(*from, end);
            *from = piece.end;
            Some(piece)
        })
        .filter(|piece| !piece.is_empty())
    }

    /// Tasks of all threads, those of the first one first.
    fn tasks(&self) -> usize {
        self.threads * self.parts * self.cut.passes
    }

    /// The last ones of a thread may be empty.
    fn task(&self, task: usize) -> Task {
        let (part, pass) =
            (task / self.cut.passes, Pass { index: task % self.cut.passes, of: self.cut.passes });
        let (thread, mut part) = (part / self.parts, part % self.parts);
        for piece in self.pieces(thread) {
            let parts = self.cut.parts_of(piece.len());
            if part < parts {
                let (panels, streams) = self.cut.part(piece.len(), part);
                return Task { panels: piece.start + panels.start..piece.start + panels.end, streams, pass };
            }
            part -= parts;
        }
        Task { panels: 0..0, streams: None, pass }
    }

    /// Panels of a task at most, where they lie side by side.
    fn widest(&self) -> usize {
        // A share may have one panel more than another, and less than a multiple besides.
        self.panels.div_ceil(self.threads).min((self.cut.most + 1) * self.cut.multiple)
    }

    /// Rows of `x` of a task at most, of `m`.
    fn highest(&self, m: usize) -> usize {
        (m.div_ceil(HIGHEST).div_ceil(self.cut.passes) * HIGHEST).min(m)
    }
}

impl Cut {
    /// Multiples in so many panels.
    fn multiples_of(self, panels: usize) -> usize {
        (panels / self.multiple).max(1)
    }

    /// Parts of so many panels.
    fn parts_of(self, panels: usize) -> usize {
        self.multiples_of(panels).div_ceil(self.most)
    }

    /// Which of so many panels a part takes.
    fn part(self, panels: usize, part: usize) -> (Range<usize>, Option<Streams>) {
        let parts = self.parts_of(panels);
        let is_last = part + 1 == parts;
        let share_of = |whole: usize| whole * part / parts..whole * (part + 1) / parts;
        if let Some(width) = self.streams {
            let (apart, _) = full_tiles(panels, width);
            if apart > 1 {
                let Range { start, end } = share_of(apart);
                let rest = if is_last { panels - width * apart } else { 0 };
                let streams =
                    Streams { width, full: end - start, apart, rest_at: width * apart - start, rest };
                return (start..panels, Some(streams));
            }
        }
        let Range { start, end } = share_of(self.multiples_of(panels));
        (start * self.multiple..if is_last { panels } else { end * self.multiple }, None)
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
    /// Which of these panels it is; all if there are none.
    streams: Option<Streams>,
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
    /// Whether it is in the cache.
    is_near: bool,
}

impl Part<'_> {
    /// Calls `take` for each of its tiles.
    #[inline(always)]
    fn for_each_tile(&self, registers: Registers, take: impl FnMut(Tile)) {
        assert!(self.first.is_multiple_of(PANEL), "tasks start at a panel");
        let layout = self.linear.weights.layout();
        let weights = Panels {
            at: self.weights().as_ptr(),
            panels: self.streams.map_or(self.count.div_ceil(PANEL), |streams| streams.panels()),
            streams: self.streams,
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

    /// Asks for where a tile's sums go: it comes while they are computed.
    #[inline(always)]
    fn ask_tile<S: Simd, const MR: usize, const NR: usize>(&self, s: S, tile: &Tile) {
        let Destination { values, stride, at, is_near } = self.y;
        if is_near {
            return;
        }
        let y = values.pointer(at + tile.first * stride + tile.panel * PANEL, 0);
        for m in 0..MR {
            for n in 0..NR {
                s.prefetch(y.wrapping_add(m * stride + n * tile.apart * PANEL).cast());
            }
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
        let Destination { values, stride, at, .. } = self.y;
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
