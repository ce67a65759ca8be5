//! How a product is shared out among threads, and each thread's share into tasks.

use std::ops::Range;

use super::super::Cpu;
use super::super::packed::PANEL;
use super::part::Linear;
use super::tiles::{HIGHEST, MOST_ACCUMULATORS, Pass, Registers, Streams, full_tiles};

/// Bytes of weights a task takes at most, unless one tile of all columns has more.
const TASK_BYTES: usize = 256 << 10;
/// Multiplications of a task at most, likewise: tens of microseconds, so that threads end together.
const TASK_PRODUCTS: usize = 16 << 20;
/// Multiplications below which waking another thread costs more than it gives.
const ALONE: usize = 64 << 10;

/// How the panels of a product are shared out: to each thread as many as to the others, in tasks of some panels of one matrix and,
/// where those are too much for many rows of `x`, some of the rows.
pub(super) struct Shares<'a> {
    stack: &'a [Linear<'a>],
    /// Of all matrices.
    panels: usize,
    pub(super) threads: usize,
    cut: Cut,
    /// Parts of a thread's share at most.
    parts: usize,
}

/// How a thread's share is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Panels of a tile: parts start at multiples of as many in the share of a matrix, and the last one takes what is over.
    pub(super) multiple: usize,
    /// Such multiples of a part at most.
    pub(super) most: usize,
    /// Tasks of a part, one after another, each for some of the rows.
    pub(super) passes: usize,
    /// Streams that the share of a matrix is read in, each part taking some of each; `None` if its panels are to lie side by side.
    pub(super) streams: Option<usize>,
}

/// What is computed at once.
pub(super) struct Task {
    /// Its panels, which some thread may have none of; with streams, up to the last one of its share.
    pub(super) panels: Range<usize>,
    pub(super) streams: Option<Streams>,
    /// Its part of the rows.
    pub(super) pass: Pass,
}

impl<'a> Shares<'a> {
    /// Of the panels of `stack`, for `m` rows of `x`. One thread has all if they are too little work to share out.
    pub(super) fn new(cpu: &Cpu, m: usize, stack: &'a [Linear<'a>]) -> Self {
        let Some(layout) = stack.first().map(|linear| linear.weights.layout()) else {
            return Self::cut(stack, 1, Cut { multiple: 1, most: 1, passes: 1, streams: None });
        };
        let panels: usize = stack.iter().map(|linear| linear.weights.layout().panels()).sum();
        let multiple = Registers::of(layout.format, MOST_ACCUMULATORS, true).panel_multiple(m);
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
    pub(super) fn in_streams(mut self, width: Option<usize>) -> Self {
        self.cut.streams = width;
        self
    }

    pub(super) fn cut(stack: &'a [Linear<'a>], threads: usize, cut: Cut) -> Self {
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
    pub(super) fn tasks(&self) -> usize {
        self.threads * self.parts * self.cut.passes
    }

    /// The last ones of a thread may be empty.
    pub(super) fn task(&self, task: usize) -> Task {
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
    pub(super) fn widest(&self) -> usize {
        // A share may have one panel more than another, and less than a multiple besides.
        self.panels.div_ceil(self.threads).min((self.cut.most + 1) * self.cut.multiple)
    }

    /// Rows of `x` of a task at most, of `m`.
    pub(super) fn highest(&self, m: usize) -> usize {
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
