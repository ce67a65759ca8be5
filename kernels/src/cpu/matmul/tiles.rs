//! Divides a product into tiles: some rows of `x` by some panels of weights, with the sums in registers.
//!
//! All rows of `x` use a few panels before the next panels are read. So weights are read from memory once,
//! and while tiles of later rows read them from the cache, the following panels are prefetched.

use std::ops::Range;

use super::super::packed::Format;
use super::super::simd::Simd;

/// Most panels read side by side: several long streams are faster to read than one.
pub(in crate::cpu) const MAX_STREAMS: usize = 4;
/// Vectors of sums that fit the largest register file besides the operands. With fewer, there is no minimum
/// width of tiles.
pub(super) const MAX_ACCUMULATORS: usize = 24;
/// Rows of a tile with that many accumulators, by three panels. More rows by fewer panels were slower
/// (bfloat16 on Zen 4: 12 by 2, 16 by 1).
pub(super) const MAX_TILE_ROWS: usize = 8;
/// Bytes in a cache line.
const LINE_BYTES: usize = 64;

/// Register budget of an instruction set for a format.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Registers {
    /// Vectors of sums that fit.
    accumulators: usize,
    /// Most rows per tile.
    highest: usize,
}

impl Registers {
    /// Budget of `accumulators` vectors of sums, for tiles of at least `panels` panels if `x` has enough
    /// rows.
    pub(super) const fn new(accumulators: usize, panels: usize) -> Self {
        let highest = accumulators / panels;
        Self { accumulators, highest: if highest < MAX_TILE_ROWS { highest } else { MAX_TILE_ROWS } }
    }

    /// Budget of an instruction set with `accumulators` for weights in `format`. Integer tiles have at least
    /// two panels, so that each read of `x` serves both.
    pub(super) const fn of(format: Format, accumulators: usize, has_dot: bool) -> Self {
        if format.is_integer() {
            Self::new(accumulators / format.sums(has_dot), 2)
        } else {
            Self::of_values(accumulators)
        }
    }

    /// Budget for floating-point weights: tiles of at least two panels with the largest register file.
    pub(super) const fn of_values(accumulators: usize) -> Self {
        Self::new(accumulators, if accumulators == MAX_ACCUMULATORS { 2 } else { 1 })
    }

    /// Most rows per tile.
    pub(in crate::cpu) const fn highest(self) -> usize {
        self.highest
    }

    /// Panels per tile of `height` rows.
    pub(super) const fn widest(self, height: usize) -> usize {
        let fitting = self.accumulators / height;
        if fitting > MAX_STREAMS { MAX_STREAMS } else { fitting }
    }

    /// Whether tiles of this size occur. Kernels are only compiled for sizes that the instruction set uses.
    pub(in crate::cpu) const fn has(self, height: usize, width: usize) -> bool {
        // A tile may have one row less than the tallest one, and all have the width of the tallest.
        let (lower, taller) = (self.widest(height), self.widest(height + 1));
        let is_rest = width == 1 || (width == 2 && (lower == 3 || taller == 3));
        height <= self.highest && (is_rest || width == lower || width == taller)
    }

    /// Multiple of panels for tasks with `m` rows of `x`: the panels of a tile. So no panels are left over to
    /// be read one by one.
    pub(super) fn panel_multiple(self, m: usize) -> usize {
        self.widest(heights(m, self.highest).tallest())
    }

    /// Panels per tile if `m` rows fit a single tile; `None` if there are several tiles.
    pub(super) fn width_of_single(self, m: usize) -> Option<usize> {
        (m <= self.highest).then(|| self.widest(m))
    }

    /// Calls `take` for all tiles of `m` rows of `x` by the given panels.
    #[inline(always)]
    pub(super) fn for_each_tile(self, m: usize, weights: Panels, mut take: impl FnMut(Tile)) {
        let Panels { at: weights, panels, streams, panel_bytes, next, near, pass } = weights;
        let rows = heights(m, self.highest);
        let widest = self.widest(rows.tallest());
        let is_single = rows.tiles == 1 && pass.of == 1;
        let (full, rest) = full_tiles(panels, widest);
        // With a single tile of rows, each of its panels advances through its own section of the task's
        // panels, in long streams.
        let (full, apart, rest_at) = match streams {
            Some(Streams { width, full, apart, rest_at, .. }) => {
                assert!(is_single && width == widest, "a tile takes a panel of each stream");
                (full, apart, rest_at)
            }
            None if is_single => (full, full, full * widest),
            None => (full, 1, full * widest),
        };
        let blocks = full + (panels - full * widest) / rest;
        let position = |block: usize| {
            if block >= full {
                (rest_at + (block - full) * rest, rest, 1)
            } else if is_single {
                (block, widest, apart)
            } else {
                (block * widest, widest, apart)
            }
        };
        for block in 0..blocks {
            let (panel, width, apart) = position(block);
            let here = |block: usize| weights.wrapping_add(position(block).0 * panel_bytes);
            let next = match pass.of {
                1 if block + 1 < blocks => Some(here(block + 1)),
                1 => next,
                _ => next.map(|next| next.wrapping_add(panel * panel_bytes)),
            };
            let mut first = 0;
            for (i, height) in rows.enumerate() {
                let prefetch = if is_single {
                    Prefetch::Near(near)
                } else {
                    let (i, tiles) = (pass.index * rows.tiles + i, pass.of * rows.tiles);
                    next.map_or(Prefetch::Near(0), |at| {
                        Prefetch::part_of_next(at, width * panel_bytes, i, tiles)
                    })
                };
                take(Tile { first, height, panel, width, apart, prefetch });
                first += height;
            }
        }
    }
}

/// Number of tiles with `widest` panels, and panels of each tile for the remainder. Tiles of one panel are
/// slow: four panels are two and two, not three and one.
pub(super) fn full_tiles(panels: usize, widest: usize) -> (usize, usize) {
    match (panels / widest, panels % widest) {
        (full @ 1.., 1) if widest == 3 => (full - 1, 2),
        (full, 2) if widest == 3 => (full, 2),
        (full, _) => (full, 1),
    }
}

/// Panels of several streams, some of each, for a single tile of rows. A thread's share of a matrix passes
/// through all its tasks in `width` long streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    /// Number of streams.
    pub(super) width: usize,
    /// Panels in each stream.
    pub(super) full: usize,
    /// Panels from the start of one stream to the next.
    pub(super) apart: usize,
    /// Position of the panels that are in no stream, relative to the first stream's first panel.
    pub(super) rest_at: usize,
    /// Number of panels that are in no stream.
    pub(super) rest: usize,
}

impl Streams {
    /// All panels, including those in no stream.
    pub(super) fn panels(&self) -> usize {
        self.width * self.full + self.rest
    }
}

/// The panels of a task.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// Address of the first panel.
    pub(super) at: *const u8,
    pub(super) panels: usize,
    /// How the panels are divided into streams; `None` if they are adjacent. For a single tile of rows only.
    pub(super) streams: Option<Streams>,
    pub(super) panel_bytes: usize,
    /// Address that this thread will probably read next.
    pub(super) next: Option<*const u8>,
    /// Pass over these panels.
    pub(super) pass: Pass,
    /// Prefetch distance of a single tile of rows, in bytes.
    pub(super) near: usize,
}

/// One of several passes over the same panels, each for some of the rows of `x`. Each pass prefetches a part
/// of the next panels.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    pub(super) index: usize,
    /// Number of passes.
    pub(super) of: usize,
}

impl Pass {
    /// A single pass for all rows.
    #[cfg(test)]
    const ONLY: Self = Self { index: 0, of: 1 };

    /// The pass's part of `m` rows: whole tiles except for the last one.
    pub(super) fn rows(self, m: usize) -> Range<usize> {
        let tiles = m.div_ceil(MAX_TILE_ROWS);
        let bound = |i: usize| (tiles * i / self.of * MAX_TILE_ROWS).min(m);
        bound(self.index)..bound(self.index + 1)
    }
}

/// Position and size of a tile.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Tile {
    /// First row of `x`.
    pub(in crate::cpu) first: usize,
    /// Number of rows of `x`.
    pub(in crate::cpu) height: usize,
    /// First panel, relative to the task's first.
    pub(in crate::cpu) panel: usize,
    /// Number of panels.
    pub(in crate::cpu) width: usize,
    /// Distance between neighbouring panels of the tile, in panels.
    pub(in crate::cpu) apart: usize,
    /// Weights to prefetch during the tile.
    pub(in crate::cpu) prefetch: Prefetch,
}

/// Weights to prefetch. Pass by reference: copying it defeats store-to-load forwarding (the load is wider
/// than the stores), so it stalls until earlier stores are done, including the last tile's results. That
/// costs a tenth of small products of many rows.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Prefetch {
    /// This many bytes ahead in each panel; 0 = nothing.
    Near(usize),
    /// This many lines from the address on, into the second-level cache.
    Next(*const u8, usize),
}

impl Prefetch {
    /// A cursor that spreads the prefetches over `issues` calls of [`PrefetchCursor::issue`].
    #[inline(always)]
    pub(in crate::cpu) fn cursor(&self, issues: usize) -> PrefetchCursor {
        match self {
            Self::Near(bytes) => PrefetchCursor { near: *bytes, at: std::ptr::null(), lines: 0 },
            Self::Next(at, lines) => {
                PrefetchCursor { near: 0, at: *at, lines: lines.div_ceil(issues.max(1)) }
            }
        }
    }

    /// The part of `bytes` at `at` that the `i`-th of `tiles` tiles prefetches.
    fn part_of_next(at: *const u8, bytes: usize, i: usize, tiles: usize) -> Self {
        let bytes = bytes.div_ceil(tiles).next_multiple_of(LINE_BYTES);
        Self::Next(at.wrapping_add(i * bytes), bytes / LINE_BYTES)
    }
}

/// The prefetches of a tile, issued little by little.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct PrefetchCursor {
    /// Distance ahead of the reads, in bytes; 0 = none.
    near: usize,
    at: *const u8,
    lines: usize,
}

impl PrefetchCursor {
    /// Issues one portion of prefetches, while `bytes` of `NR` panels, `apart` bytes apart, are read from `w`
    /// on.
    #[inline(always)]
    pub(in crate::cpu) fn issue<S: Simd, const NR: usize>(
        &mut self,
        s: S,
        w: *const u8,
        apart: usize,
        bytes: usize,
    ) {
        self.near::<S, NR>(s, w, apart, bytes);
        for _ in 0..self.lines {
            s.prefetch_later(self.at);
            self.at = self.at.wrapping_add(LINE_BYTES);
        }
    }

    /// Near part of [`PrefetchCursor::issue`]: weights that are read soon.
    #[inline(always)]
    pub(in crate::cpu) fn near<S: Simd, const NR: usize>(
        self,
        s: S,
        w: *const u8,
        apart: usize,
        bytes: usize,
    ) {
        if self.near > 0 {
            for line in (0..bytes).step_by(LINE_BYTES) {
                for n in 0..NR {
                    s.prefetch(w.wrapping_add(n * apart + line + self.near));
                }
            }
        }
    }
}

/// Heights of tiles: nearly equal, taller ones first.
#[derive(Clone, Copy)]
struct Heights {
    rows: usize,
    tiles: usize,
}

/// Divides rows into the fewest tiles of at most `highest` rows.
fn heights(rows: usize, highest: usize) -> Heights {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_row_and_panel_once_and_have_a_size_that_exists() {
        for (accumulators, least) in [(2, 2), (4, 2), (5, 1), (8, 2), (12, 2), (MAX_ACCUMULATORS, 2)] {
            let registers = Registers::new(accumulators, least);
            for (m, panels) in (1..40).flat_map(|m| (1..15).map(move |panels| (m, panels))) {
                let mut covered = vec![0; m * panels];
                let weights = Panels {
                    at: std::ptr::null(),
                    panels,
                    streams: None,
                    panel_bytes: 64,
                    next: None,
                    pass: Pass::ONLY,
                    near: 0,
                };
                registers.for_each_tile(m, weights, |tile| {
                    assert!(registers.has(tile.height, tile.width), "{accumulators}: {m} x {panels}");
                    assert!(tile.height * tile.width <= accumulators);
                    for (row, panel) in (0..tile.height).flat_map(|i| (0..tile.width).map(move |j| (i, j))) {
                        covered[(tile.first + row) * panels + tile.panel + panel * tile.apart] += 1;
                    }
                });
                assert!(covered.iter().all(|times| *times == 1), "{accumulators}: {m} x {panels}");
            }
        }
    }

    #[test]
    fn the_next_panels_are_prefetched_once_during_the_tiles() {
        let registers = Registers::new(MAX_ACCUMULATORS, 2);
        let (m, panels, panel_bytes, next) = (40, 7, 3000, 100_000);
        let weights = Panels {
            at: std::ptr::null(),
            panels,
            streams: None,
            panel_bytes,
            next: Some(next as *const u8),
            pass: Pass::ONLY,
            near: 0,
        };
        let mut prefetched: Vec<(usize, usize)> = Vec::new();
        registers.for_each_tile(m, weights, |tile| match tile.prefetch {
            Prefetch::Next(at, lines) => prefetched.push((at as usize, lines * LINE_BYTES)),
            Prefetch::Near(_) => panic!("there are several tiles of rows"),
        });
        // Panels 3..5 during the first three, then 5..7, and the next task's at the end.
        let starts: Vec<usize> = prefetched.iter().map(|(at, _)| *at).collect();
        assert!(starts.contains(&(3 * panel_bytes)) && starts.contains(&(5 * panel_bytes)));
        assert!(starts.contains(&next) && starts.iter().all(|at| *at < next + 3 * panel_bytes));
        let first: usize = prefetched.iter().take(m.div_ceil(MAX_TILE_ROWS)).map(|(_, bytes)| bytes).sum();
        assert!((3 * panel_bytes..3 * panel_bytes + 5 * LINE_BYTES + 5).contains(&first), "{first}");
    }
}
