//! Divides a product among threads, and each thread's share into tasks.

use std::ops::Range;

use super::super::Cpu;
use super::super::packed::{Layout, PANEL};
use super::part::Linear;
use super::tiles::{MAX_ACCUMULATORS, MAX_TILE_ROWS, Pass, Registers, Streams, full_tiles};

/// Most bytes of weights per task, unless a single tile of all columns has more.
const TASK_BYTES: usize = 256 << 10;
/// Most multiplications per task, likewise. This takes tens of microseconds, so that threads finish together.
const TASK_PRODUCTS: usize = 16 << 20;
/// Tasks per thread, if there are so many panels: they even out differences in speed.
const TASKS_PER_THREAD: usize = 8;
/// [`TASK_BYTES`] for a single tile of rows whose streams end with the task. The hardware takes a few
/// kilobytes of a stream to prefetch at full speed: on Zen 4, streams of 40 kB are read at 85% of the
/// bandwidth, streams of 80 kB at 95%.
const LONG_TASK_BYTES: usize = 512 << 10;
/// [`TASKS_PER_THREAD`], likewise.
const LONG_TASKS_PER_THREAD: usize = 4;
/// Below this many multiplications, waking another thread costs more than it gains.
const MIN_PRODUCTS_TO_SHARE: usize = 64 << 10;

/// Limits of a thread's tasks.
struct TaskLimits {
    /// Most bytes of weights per task.
    bytes: usize,
    /// Tasks per thread, if there are so many panels.
    per_thread: usize,
}

impl TaskLimits {
    const SHORT: Self = Self { bytes: TASK_BYTES, per_thread: TASKS_PER_THREAD };
    const LONG: Self = Self { bytes: LONG_TASK_BYTES, per_thread: LONG_TASKS_PER_THREAD };
}

/// Division of a product's panels. Each thread gets the same number, in tasks of some panels of one matrix.
/// If even a few panels are too much work for all rows of `x`, a task has only some of the rows.
pub(super) struct Shares<'a> {
    stack: &'a [Linear<'a>],
    /// Panels of all matrices.
    panels: usize,
    pub(super) threads: usize,
    cut: Cut,
    /// Most parts of a thread's share.
    parts: usize,
}

/// How a thread's share is divided into parts.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Panels of a tile. Within the share of a matrix, parts start at multiples of it, and the last part
    /// takes the remainder.
    pub(super) multiple: usize,
    /// Most such multiples per part.
    pub(super) most: usize,
    /// Tasks per part, one after another, each for some of the rows.
    pub(super) passes: usize,
    /// Number of streams in which the share of a matrix is read; each part has a section of every stream.
    /// `None`: a part's panels are adjacent.
    pub(super) streams: Option<usize>,
}

/// The unit of work of a thread.
pub(super) struct Task {
    /// The task's panels; may be empty. With streams, the range reaches to the end of the thread's share of
    /// the matrix.
    pub(super) panels: Range<usize>,
    pub(super) streams: Option<Streams>,
    /// The task's part of the rows.
    pub(super) pass: Pass,
}

impl<'a> Shares<'a> {
    /// Divides the panels of `stack` for `m` rows of `x`. If there is too little work to divide, one thread
    /// gets all of it.
    pub(super) fn new(cpu: &Cpu, m: usize, stack: &'a [Linear<'a>]) -> Self {
        Self::limited(cpu, m, stack, TaskLimits::SHORT)
    }

    /// Like [`Shares::new`], for tasks that are never [in streams](Shares::in_streams).
    pub(super) fn in_long_tasks(cpu: &Cpu, m: usize, stack: &'a [Linear<'a>]) -> Self {
        let is_single = stack.first().is_some_and(|linear| {
            let format = linear.weights.layout().format;
            Registers::of(format, MAX_ACCUMULATORS, true).width_of_single(m).is_some()
        });
        if is_single { Self::limited(cpu, m, stack, TaskLimits::LONG) } else { Self::new(cpu, m, stack) }
    }

    fn limited(cpu: &Cpu, m: usize, stack: &'a [Linear<'a>], limits: TaskLimits) -> Self {
        let Some(layout) = stack.first().map(|linear| linear.weights.layout()) else {
            return Self::cut(stack, 1, Cut { multiple: 1, most: 1, passes: 1, streams: None });
        };
        let panels: usize = stack.iter().map(|linear| linear.weights.layout().panels()).sum();
        let multiple = Registers::of(layout.format, MAX_ACCUMULATORS, true).panel_multiple(m);
        if m.saturating_mul(panels * PANEL).saturating_mul(layout.cols) < MIN_PRODUCTS_TO_SHARE {
            return Self::cut(stack, 1, Cut { multiple, most: panels.max(1), passes: 1, streams: None });
        }
        let threads = cpu.threads.count();
        let by_threads = panels / (threads * limits.per_thread);
        Self::cut(stack, threads, Cut::of(layout, m, multiple, limits.bytes, by_threads))
    }

    /// Divides the panels of one of many matrices multiplied together, for `m` rows of `x`. Tasks are not
    /// assigned to threads: the next free thread takes each one.
    pub(super) fn of_member(m: usize, matrix: &'a Linear<'a>) -> Self {
        let layout = matrix.weights.layout();
        let multiple = Registers::of(layout.format, MAX_ACCUMULATORS, true).panel_multiple(m);
        Self::cut(std::slice::from_ref(matrix), 1, Cut::of(layout, m, multiple, TASK_BYTES, usize::MAX))
    }

    /// For a single tile of rows, reads in `width` streams that continue from task to task: the streams of a
    /// small task alone would be too short for prefetching.
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

    /// A thread's share of each matrix that it has panels of, in panels of the whole stack.
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

    /// Number of tasks of all threads; the first thread's come first.
    pub(super) fn tasks(&self) -> usize {
        self.threads * self.parts * self.cut.passes
    }

    /// Task number `task`. A thread's last tasks may be empty.
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

    /// Most panels of a task whose panels are adjacent.
    pub(super) fn widest(&self) -> usize {
        // A share may have one panel more than another, and a remainder of less than a multiple.
        self.panels.div_ceil(self.threads).min((self.cut.most + 1) * self.cut.multiple)
    }

    /// Most rows per task if `x` has `m` rows.
    pub(super) fn highest(&self, m: usize) -> usize {
        (m.div_ceil(MAX_TILE_ROWS).div_ceil(self.cut.passes) * MAX_TILE_ROWS).min(m)
    }
}

impl Cut {
    /// Tasks of at most `most_panels` panels and `bytes` bytes for `m` rows, limited by [`TASK_PRODUCTS`].
    fn of(layout: Layout, m: usize, multiple: usize, bytes: usize, most_panels: usize) -> Self {
        let by_bytes = bytes / layout.panel_bytes();
        let by_products = TASK_PRODUCTS / (m * layout.cols * PANEL);
        let most = (by_bytes.min(most_panels).min(by_products) / multiple).max(1);
        let passes =
            (m * layout.cols * PANEL * multiple / TASK_PRODUCTS).clamp(1, m.div_ceil(4 * MAX_TILE_ROWS));
        Self { multiple, most, passes, streams: None }
    }

    /// Multiples in `panels` panels, at least one.
    fn multiples_of(self, panels: usize) -> usize {
        (panels / self.multiple).max(1)
    }

    /// Parts in `panels` panels.
    fn parts_of(self, panels: usize) -> usize {
        self.multiples_of(panels).div_ceil(self.most)
    }

    /// The panels of part number `part`, out of `panels`.
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
