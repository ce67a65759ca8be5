//! How a product is cut into tiles: some rows of `x` by some panels of weights, their sums in registers.
//!
//! Some panels are taken for all rows of `x` before the next ones: weights come from memory once, and while tiles of later rows
//! read them from the cache, memory works on the panels that follow.

use std::ops::Range;

use super::super::packed::Format;
use super::super::simd::Simd;

/// Panels that are read side by side: several long streams come from memory faster than one.
pub(in crate::cpu) const MOST_STREAMS: usize = 4;
/// Vectors of sums that the widest register file holds besides the operands; others do with any number of rows.
pub(super) const MOST_ACCUMULATORS: usize = 24;
/// Rows of a tile there: by three panels. More rows by fewer panels were slower (bfloat16 on Zen 4: 12 by 2, 16 by 1).
pub(super) const HIGHEST: usize = 8;
/// A cache line.
const LINE_BYTES: usize = 64;

/// What the registers of an instruction set and format have room for.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Registers {
    /// Vectors of sums.
    accumulators: usize,
    /// Rows of a tile at most.
    highest: usize,
}

impl Registers {
    /// Room for so many vectors of sums, in tiles of at least so many panels, where `x` has rows enough.
    pub(super) const fn new(accumulators: usize, panels: usize) -> Self {
        let highest = accumulators / panels;
        Self { accumulators, highest: if highest < HIGHEST { highest } else { HIGHEST } }
    }

    /// What an instruction set with so many has for weights in `format`. Integers take two panels at least, so that what is read
    /// of `x` serves both.
    pub(super) const fn of(format: Format, accumulators: usize, has_dot: bool) -> Self {
        if format.is_integer() {
            Self::new(accumulators / format.sums(has_dot), 2)
        } else {
            Self::of_values(accumulators)
        }
    }

    /// The same for weights that are numbers: two panels at least where the register file is the widest.
    pub(super) const fn of_values(accumulators: usize) -> Self {
        Self::new(accumulators, if accumulators == MOST_ACCUMULATORS { 2 } else { 1 })
    }

    /// Rows of a tile at most.
    pub(in crate::cpu) const fn highest(self) -> usize {
        self.highest
    }

    /// Panels that a tile of `height` rows takes at once.
    pub(super) const fn widest(self, height: usize) -> usize {
        let fitting = self.accumulators / height;
        if fitting > MOST_STREAMS { MOST_STREAMS } else { fitting }
    }

    /// Whether there are tiles of that size: what an instruction set does not use is not compiled for it.
    pub(in crate::cpu) const fn has(self, height: usize, width: usize) -> bool {
        // A tile may be a row lower than the tallest one, whose width all have.
        let (lower, taller) = (self.widest(height), self.widest(height + 1));
        let is_rest = width == 1 || (width == 2 && (lower == 3 || taller == 3));
        height <= self.highest && (is_rest || width == lower || width == taller)
    }

    /// What a task for `m` rows of `x` takes a multiple of: the panels of a tile, so that none are left over to be read one by
    /// one.
    pub(super) fn panel_multiple(self, m: usize) -> usize {
        self.widest(heights(m, self.highest).tallest())
    }

    /// The panels that the only tile of `m` rows takes at once; `None` if there are several tiles.
    pub(super) fn width_of_single(self, m: usize) -> Option<usize> {
        (m <= self.highest).then(|| self.widest(m))
    }

    /// Calls `take` for all tiles of `m` rows of `x` by those panels.
    #[inline(always)]
    pub(super) fn for_each_tile(self, m: usize, weights: Panels, mut take: impl FnMut(Tile)) {
        let Panels { at: weights, panels, streams, panel_bytes, next, soon, pass } = weights;
        let rows = heights(m, self.highest);
        let widest = self.widest(rows.tallest());
        let is_single = rows.tiles == 1 && pass.of == 1;
        let (full, rest) = full_tiles(panels, widest);
        // With one tile of x, each of its panels walks through its own part of the task's: weights come in long streams.
        let (full, apart, rest_at) = match streams {
            Some(Streams { width, full, apart, rest_at, .. }) => {
                assert!(is_single && width == widest, "a tile takes a panel of each stream");
                (full, apart, rest_at)
            }
            None if is_single => (full, full, full * widest),
            None => (full, 1, full * widest),
        };
        let blocks = full + (panels - full * widest) / rest;
        let place = |block: usize| match block < full {
            true if is_single => (block, widest, apart),
            true => (block * widest, widest, apart),
            false => (rest_at + (block - full) * rest, rest, 1),
        };
        for block in 0..blocks {
            let (panel, width, apart) = place(block);
            let here = |block: usize| weights.wrapping_add(place(block).0 * panel_bytes);
            let next = match pass.of {
                1 if block + 1 < blocks => Some(here(block + 1)),
                1 => next,
                _ => next.map(|next| next.wrapping_add(panel * panel_bytes)),
            };
            let mut first = 0;
            for (i, height) in rows.enumerate() {
                let ahead = match is_single {
                    true => Ahead::Soon(soon),
                    false => {
                        let (i, tiles) = (pass.index * rows.tiles + i, pass.of * rows.tiles);
                        next.map_or(Ahead::Soon(0), |at| Ahead::later(at, width * panel_bytes, i, tiles))
                    }
                };
                take(Tile { first, height, panel, width, apart, ahead });
                first += height;
            }
        }
    }
}

/// Tiles of all of `widest` panels, and the panels of those that take the rest. Tiles of one panel are slow: four panels are two and
/// two, not three and one.
pub(super) fn full_tiles(panels: usize, widest: usize) -> (usize, usize) {
    match (panels / widest, panels % widest) {
        (full @ 1.., 1) if widest == 3 => (full - 1, 2),
        (full, 2) if widest == 3 => (full, 2),
        (full, _) => (full, 1),
    }
}

/// Panels that one tile of rows takes from several places, some from each: its share of a matrix goes through all tasks in as many long
/// streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    /// How many there are.
    pub(super) width: usize,
    /// Panels of each.
    pub(super) full: usize,
    /// Panels from a stream's first to the next one's.
    pub(super) apart: usize,
    /// Where the panels lie that no stream takes, from the first stream's first.
    pub(super) rest_at: usize,
    /// How many those are.
    pub(super) rest: usize,
}

impl Streams {
    /// Panels of all, and the rest.
    pub(super) fn panels(&self) -> usize {
        self.width * self.full + self.rest
    }
}

/// The panels of a task.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// Where they lie.
    pub(super) at: *const u8,
    pub(super) panels: usize,
    /// How, unless side by side. For one tile of rows, which takes as many at once.
    pub(super) streams: Option<Streams>,
    pub(super) panel_bytes: usize,
    /// Where this thread will read on, if that is known.
    pub(super) next: Option<*const u8>,
    /// Which pass over them this is.
    pub(super) pass: Pass,
    /// How far ahead of what is read a single tile of rows asks, in bytes.
    pub(super) soon: usize,
}

/// Panels may be met several times, each time by a part of the rows of `x`: in each pass a part of what comes next is asked for.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    pub(super) index: usize,
    /// Passes there are.
    pub(super) of: usize,
}

impl Pass {
    /// All rows at once.
    #[cfg(test)]
    const ONLY: Self = Self { index: 0, of: 1 };

    /// Its part of `m` rows: whole tiles but for the last one.
    pub(super) fn rows(self, m: usize) -> Range<usize> {
        let tiles = m.div_ceil(HIGHEST);
        let bound = |i: usize| (tiles * i / self.of * HIGHEST).min(m);
        bound(self.index)..bound(self.index + 1)
    }
}

/// Where a tile lies.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Tile {
    /// Its first row of `x`.
    pub(in crate::cpu) first: usize,
    /// Rows of `x`.
    pub(in crate::cpu) height: usize,
    /// Its first panel, of the task's.
    pub(in crate::cpu) panel: usize,
    /// Panels.
    pub(in crate::cpu) width: usize,
    /// Panels from one of its panels to the next.
    pub(in crate::cpu) apart: usize,
    /// Weights to ask for meanwhile.
    pub(in crate::cpu) ahead: Ahead,
}

/// Weights to ask for. Who passes it on passes a reference: a copy is read in wider words than it was written in, which waits until
/// all stores before are done, those of the last tile's results among them (a tenth of small products of many rows).
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Ahead {
    /// Those so many bytes further in each panel; none if 0.
    Soon(usize),
    /// So many lines from there on, into the second-level cache.
    Later(*const u8, usize),
}

impl Ahead {
    /// In so many looks.
    #[inline(always)]
    pub(in crate::cpu) fn over(&self, looks: usize) -> Looks {
        match self {
            Self::Soon(bytes) => Looks { soon: *bytes, at: std::ptr::null(), lines: 0 },
            Self::Later(at, lines) => Looks { soon: 0, at: *at, lines: lines.div_ceil(looks.max(1)) },
        }
    }

    /// What the `i`-th of `tiles` asks for, so that all together ask for `bytes` at `at`.
    fn later(at: *const u8, bytes: usize, i: usize, tiles: usize) -> Self {
        let bytes = bytes.div_ceil(tiles).next_multiple_of(LINE_BYTES);
        Self::Later(at.wrapping_add(i * bytes), bytes / LINE_BYTES)
    }
}

/// What a tile asks for, part by part.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Looks {
    /// Bytes ahead of what is read.
    soon: usize,
    at: *const u8,
    lines: usize,
}

impl Looks {
    /// Asks for one part, while `bytes` of `NR` panels that are `apart` bytes apart are read from `w` on.
    #[inline(always)]
    pub(in crate::cpu) fn ask<S: Simd, const NR: usize>(
        &mut self,
        s: S,
        w: *const u8,
        apart: usize,
        bytes: usize,
    ) {
        if self.soon > 0 {
            for line in (0..bytes).step_by(LINE_BYTES) {
                for n in 0..NR {
                    s.prefetch(w.wrapping_add(n * apart + line + self.soon));
                }
            }
        }
        for _ in 0..self.lines {
            s.prefetch_later(self.at);
            self.at = self.at.wrapping_add(LINE_BYTES);
        }
    }
}

/// Heights of tiles: nearly equal, the taller ones first.
#[derive(Clone, Copy)]
struct Heights {
    rows: usize,
    tiles: usize,
}

/// The fewest tiles of at most `highest` rows.
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
        for (accumulators, least) in [(2, 2), (4, 2), (5, 1), (8, 2), (12, 2), (MOST_ACCUMULATORS, 2)] {
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
                    soon: 0,
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
    fn what_comes_next_is_asked_for_once_while_tiles_pass() {
        let registers = Registers::new(MOST_ACCUMULATORS, 2);
        let (m, panels, panel_bytes, next) = (40, 7, 3000, 100_000);
        let weights = Panels {
            at: std::ptr::null(),
            panels,
            streams: None,
            panel_bytes,
            next: Some(next as *const u8),
            pass: Pass::ONLY,
            soon: 0,
        };
        let mut asked: Vec<(usize, usize)> = Vec::new();
        registers.for_each_tile(m, weights, |tile| match tile.ahead {
            Ahead::Later(at, lines) => asked.push((at as usize, lines * LINE_BYTES)),
            Ahead::Soon(_) => panic!("there are several tiles of rows"),
        });
        // Panels 3..5 while the first three are multiplied, then 5..7; the next task's at the end.
        let starts: Vec<usize> = asked.iter().map(|(at, _)| *at).collect();
        assert!(starts.contains(&(3 * panel_bytes)) && starts.contains(&(5 * panel_bytes)));
        assert!(starts.contains(&next) && starts.iter().all(|at| *at < next + 3 * panel_bytes));
        let first: usize = asked.iter().take(m.div_ceil(HIGHEST)).map(|(_, bytes)| bytes).sum();
        assert!((3 * panel_bytes..3 * panel_bytes + 5 * LINE_BYTES + 5).contains(&first), "{first}");
    }
}
