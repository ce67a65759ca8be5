//! Many rows of `x`: a task's weights are first laid out in panels of sixteen outputs, so that an output is a lane and no
//! vector has to be summed up at the end.
//!
//! The sums are those that [`super::arithmetic`] defines, in its order: an output's sixteen lanes are here sixteen chains, two
//! computed at a time and joined as [`Simd::sum`] joins lanes. So a row's bits do not tell how it was computed.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::super::simd::{Kernel, LANES, Simd};
use super::super::{Part, tile_heights};
use super::arithmetic::Arithmetic;
use super::block_columns;
use super::scratch::{LINE_BYTES, Line, Scratch};

/// Rows of `x` from which on laying out the weights is soon paid back.
pub(super) const LEAST_ROWS: usize = 64;
/// Chains that are computed and joined together: the first, and the one eight further. In this order, so that each pair is joined to
/// the one before it, then the two to the two before...
const FIRST_OF_PAIR: [usize; PAIRS] = [0, 4, 2, 6, 1, 5, 3, 7];
const PAIRS: usize = LANES / 2;
/// Sums that wait to be joined: of a pair, of two, of four.
const LEVELS: usize = PAIRS.ilog2() as usize;
/// What is laid out where there is nothing.
static ZEROS: [u8; LINE_BYTES] = [0; LINE_BYTES];
/// How far ahead weights are asked for while they are laid out.
const PREFETCH_BYTES: usize = 1024;

/// Rows of `x` and panels of a tile.
const fn tile_size<S: Simd>() -> (usize, usize) {
    if S::ACCUMULATORS >= 24 { (6, 2) } else { (S::ACCUMULATORS / 2, 1) }
}

/// Outputs of the widest tile of any instruction set.
pub(super) const WIDEST: usize = 2 * LANES;

/// A task's weights in panels: `[panels][8 pairs, in their order][steps][parts][2 chains][16 outputs]`, 32 bits each.
#[derive(Clone, Copy)]
struct Panels<'a> {
    lines: &'a [Line],
    /// Lines of a pair: twice an odd number, so that pairs do not compete for the same places of a cache.
    pair: usize,
}

impl Part<'_> {
    /// All rows of `x` against all of the task's weights, which lie in `w`.
    #[inline(always)]
    pub(super) fn panels<S: Simd, A: Arithmetic>(&self, s: S, w: &[u8]) {
        let (k, rows) = (self.linear.weights.cols(), self.x.rows());
        let (highest, widest) = const { tile_size::<S>() };
        let heights = tile_heights(rows, highest);
        let block = block_columns::<A>(heights.tallest(), k);
        let panels = self.count.div_ceil(LANES);
        let pair = 2 * ((k.div_ceil(A::COLUMNS) * A::PARTS) | 1);
        let mut scratch = Scratch::take();
        let unfinished = if block < k { panels * LANES * heights.tallest() } else { 0 };
        let packed = block.div_ceil(A::COLUMNS) * A::PARTS * heights.tallest();
        let [packed, unfinished, lines] = scratch.parts([packed, unfinished, panels * PAIRS * pair]);
        for (panel, lines) in lines.chunks_exact_mut(PAIRS * pair).enumerate() {
            let rows = LANES.min(self.count - panel * LANES);
            let from = (self.first + panel * LANES) * k * A::WEIGHT_BYTES;
            let w = &w[from..from + rows * k * A::WEIGHT_BYTES];
            s.call(LayOut::<A> { w, k, lines, pair, arithmetic: PhantomData });
        }
        let laid_out = Panels { lines, pair };
        let full = panels / widest;
        let steps = k.div_ceil(block) * (full + panels % widest) * PAIRS;
        let mut next_task = self.next_task::<A>(w, heights.tiles * steps);
        let mut first = 0;
        for height in heights {
            self.prefetch_y(s, first, height);
            let mut next_rows = self.next_rows::<A>(first + height..rows.min(first + 2 * height), steps);
            for from in (0..k).step_by(block) {
                let columns = from..k.min(from + block);
                let x = self.pack::<S, A>(s, first..first + height, &columns, packed);
                for i in 0..full + panels % widest {
                    let (width, panel) =
                        if i < full { (widest, i * widest) } else { (1, full * (widest - 1) + i) };
                    let lines = if block < k {
                        panel * LANES * height..(panel + width) * LANES * height
                    } else {
                        0..0
                    };
                    let tile = Tile {
                        x,
                        w: Panels { lines: &laid_out.lines[panel * PAIRS * pair..], ..laid_out },
                        step: from / A::COLUMNS,
                        is_first: from == 0,
                        is_last: columns.end == k,
                        ahead: [next_task, next_rows],
                    };
                    let unfinished = &mut unfinished[lines];
                    macro_rules! sizes {
                        ($($mr:literal: $($nr:literal)*,)*) => {
                            match (height, width) {
                                $($(($mr, $nr) if const { is_used::<S>($mr, $nr) } => {
                                    let arithmetic = PhantomData::<A>;
                                    s.call(Block::<A, $mr, $nr> { part: self, tile, first, panel, unfinished, arithmetic });
                                })*)*
                                _ => unreachable!("every tile height and width has an arm"),
                            }
                        };
                    }
                    sizes!(2: 1, 3: 1, 4: 1 2, 5: 1 2, 6: 1 2,);
                    next_task.skip(PAIRS);
                    next_rows.skip(PAIRS);
                }
            }
            first += height;
        }
        scratch.keep();
    }

    /// What to ask for in each of `times` steps, so that this thread's next task finds its weights in the second-level cache.
    #[inline(always)]
    fn next_task<A: Arithmetic>(&self, w: &[u8], times: usize) -> Ahead {
        let row_bytes = self.linear.weights.cols() * A::WEIGHT_BYTES;
        let (bytes, from) = self.next.map_or((0, 0), |from| (self.count * row_bytes, from));
        Ahead::new(w.as_ptr().wrapping_add(self.first * row_bytes + from), bytes, times)
    }

    /// What to ask for in each of `times` steps, so that the next tile finds its rows of `x` there.
    #[inline(always)]
    fn next_rows<A: Arithmetic>(&self, rows: Range<usize>, times: usize) -> Ahead {
        let row_bytes = self.x.width() * (LINE_BYTES / A::COLUMNS);
        Ahead::new(
            A::rows(self.x).as_ptr().wrapping_add(rows.start * row_bytes),
            rows.len() * row_bytes,
            times,
        )
    }
}

/// Whether an instruction set has tiles of that size: enough rows are cut into tiles of more than half the highest.
const fn is_used<S: Simd>(height: usize, width: usize) -> bool {
    let (highest, widest) = tile_size::<S>();
    height <= highest && height * 2 > highest && (width == 1 || width == widest)
}

/// What lies ahead and is asked for little by little: so many lines a step.
#[derive(Clone, Copy)]
struct Ahead {
    at: *const u8,
    lines: usize,
}

impl Ahead {
    /// `bytes` from there on, in so many steps.
    fn new(at: *const u8, bytes: usize, times: usize) -> Self {
        Self { at, lines: bytes.div_ceil(LINE_BYTES).div_ceil(times) }
    }

    fn skip(&mut self, steps: usize) {
        self.at = self.at.wrapping_add(steps * self.lines * LINE_BYTES);
    }

    #[inline(always)]
    fn ask<S: Simd>(&mut self, s: S) {
        for line in 0..self.lines {
            s.prefetch_later(self.at.wrapping_add(line * LINE_BYTES));
        }
        self.skip(1);
    }
}

/// Lays out up to sixteen rows of weights as a panel; zeros where there are none.
struct LayOut<'a, A> {
    /// Rows of `k` values.
    w: &'a [u8],
    k: usize,
    lines: &'a mut [Line],
    pair: usize,
    arithmetic: PhantomData<A>,
}

impl<A: Arithmetic> Kernel for LayOut<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (row_bytes, step_bytes) = (self.k * A::WEIGHT_BYTES, A::COLUMNS * A::WEIGHT_BYTES);
        let rows = self.w.len() / row_bytes;
        let steps = self.k.div_ceil(A::COLUMNS);
        assert!(rows <= LANES && self.lines.len() == PAIRS * self.pair && 2 * steps * A::PARTS <= self.pair);
        let (whole, rest) = (self.k / A::COLUMNS, row_bytes % step_bytes);
        let mut padded = [[0u8; LINE_BYTES]; LANES];
        let mut from = [ZEROS.as_ptr(); LANES];
        for row in 0..rows {
            from[row] = self.w[row * row_bytes..].as_ptr();
        }
        for step in 0..whole {
            // Past the end of a row follows the one of the next panel.
            let at = step * step_bytes + PREFETCH_BYTES;
            let far = if at < row_bytes { 0 } else { (LANES - 1) * row_bytes };
            for row in 0..LANES {
                s.prefetch_later(from[row].wrapping_add(PREFETCH_BYTES + far));
            }
            // SAFETY: rows have as many whole steps, and so have zeros.
            unsafe { self.step(s, &from, step) };
            for row in 0..rows {
                from[row] = from[row].wrapping_add(step_bytes);
            }
        }
        if rest > 0 {
            for row in 0..rows {
                padded[row][..rest].copy_from_slice(&self.w[(row + 1) * row_bytes - rest..][..rest]);
                from[row] = padded[row].as_ptr();
            }
            // SAFETY: lines have a step.
            unsafe { self.step(s, &from, whole) };
        }
    }
}

impl<A: Arithmetic> LayOut<'_, A> {
    /// One step of sixteen rows.
    ///
    /// # Safety
    /// All of `from` are readable for a step's weights.
    #[inline(always)]
    unsafe fn step<S: Simd>(&mut self, s: S, from: &[*const u8; LANES], step: usize) {
        for part in 0..A::PARTS {
            let mut vectors = [s.zero(); LANES];
            for row in 0..LANES {
                // SAFETY: by the contract.
                vectors[row] = unsafe { A::lanes(s, from[row], part) };
            }
            let outputs = s.transpose(vectors);
            let lines = &mut self.lines[(step * A::PARTS + part) * 2..];
            assert!(lines.len() > (PAIRS - 1) * self.pair + 1, "a panel has all steps");
            let to = lines.as_mut_ptr().cast::<[f32; LANES]>();
            macro_rules! store {
                ($($pair:literal)*) => {$(
                    // SAFETY: lines are sixteen values, and there are as many.
                    unsafe {
                        s.store(outputs[FIRST_OF_PAIR[$pair]], to.add($pair * self.pair).cast());
                        s.store(outputs[FIRST_OF_PAIR[$pair] + PAIRS], to.add($pair * self.pair + 1).cast());
                    }
                )*};
            }
            store!(0 1 2 3 4 5 6 7); // a loop would keep all of them in memory first
        }
    }
}

/// One block of columns of a tile.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// Lines of these columns, packed `[step, part, MR]`.
    x: &'a [u8],
    /// From the tile's first panel on.
    w: Panels<'a>,
    /// The block's first step.
    step: usize,
    is_first: bool,
    is_last: bool,
    /// The next task's weights and the next tile's rows.
    ahead: [Ahead; 2],
}

/// `MR` rows of `x`, from `first` on, by `NR` panels.
struct Block<'a, A, const MR: usize, const NR: usize> {
    part: &'a Part<'a>,
    tile: Tile<'a>,
    first: usize,
    panel: usize,
    /// Sums of a block that is not the last: `[8 pairs][2 chains][MR][NR]`.
    unfinished: &'a mut [Line],
    arithmetic: PhantomData<A>,
}

impl<A: Arithmetic, const MR: usize, const NR: usize> Kernel for Block<'_, A, MR, NR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (tile, mut ahead) = (&self.tile, self.tile.ahead);
        let mut waiting = [const { MaybeUninit::uninit() }; LEVELS];
        let mut sums = [[s.zero(); NR]; MR];
        for pair in 0..PAIRS {
            ahead[0].ask(s);
            ahead[1].ask(s);
            let mut halves = [[[s.zero(); NR]; MR]; 2];
            if !tile.is_first {
                for half in 0..2 {
                    for m in 0..MR {
                        for n in 0..NR {
                            let from = &raw const self.unfinished[((pair * 2 + half) * MR + m) * NR + n];
                            // SAFETY: a line is sixteen values.
                            halves[half][m][n] = unsafe { s.load(from.cast()) };
                        }
                    }
                }
            }
            halves = tile.pair::<S, A, MR, NR>(s, pair, halves);
            if !tile.is_last {
                for half in 0..2 {
                    for m in 0..MR {
                        for n in 0..NR {
                            let to = &raw mut self.unfinished[((pair * 2 + half) * MR + m) * NR + n];
                            // SAFETY: a line is sixteen values.
                            unsafe { s.store(halves[half][m][n], to.cast()) };
                        }
                    }
                }
                continue;
            }
            sums = match pair.trailing_ones() {
                0 => join::<S, MR, NR, 0>(s, &mut waiting, halves),
                1 => join::<S, MR, NR, 1>(s, &mut waiting, halves),
                2 => join::<S, MR, NR, 2>(s, &mut waiting, halves),
                _ => join::<S, MR, NR, LEVELS>(s, &mut waiting, halves),
            };
        }
        if !tile.is_last {
            return;
        }
        for m in 0..MR {
            // SAFETY: one at a time.
            let y = unsafe { self.part.y(self.first + m) };
            for n in 0..NR {
                let column = (self.panel + n) * LANES;
                self.part.put_lanes(s, &mut y[column..], column, sums[m][n]);
            }
        }
    }
}

/// Joins a pair, and it to those that wait for it: one, then two together, and so on, `JOINS` times. Then they wait themselves,
/// unless they are all.
#[inline(always)]
fn join<S: Simd, const MR: usize, const NR: usize, const JOINS: usize>(
    s: S,
    waiting: &mut [MaybeUninit<[[S::V; NR]; MR]>; LEVELS],
    halves: [[[S::V; NR]; MR]; 2],
) -> [[S::V; NR]; MR] {
    let mut sums = halves[0];
    for m in 0..MR {
        for n in 0..NR {
            sums[m][n] = s.add(halves[0][m][n], halves[1][m][n]);
            for level in 0..JOINS {
                // SAFETY: lower levels were filled before.
                let earlier = unsafe { waiting[level].assume_init_ref()[m][n] };
                sums[m][n] = s.add(earlier, sums[m][n]);
            }
        }
    }
    if JOINS < LEVELS {
        waiting[JOINS].write(sums);
    }
    sums
}

impl Tile<'_> {
    /// Adds a pair's products to the sums of its chains. They come and go by value: so they stay in registers.
    #[inline(always)]
    fn pair<S: Simd, A: Arithmetic, const MR: usize, const NR: usize>(
        &self,
        s: S,
        pair: usize,
        mut sums: [[[S::V; NR]; MR]; 2],
    ) -> [[[S::V; NR]; MR]; 2] {
        let lines = self.x.len() / LINE_BYTES / MR;
        let start = pair * self.w.pair + self.step * A::PARTS * 2;
        let panel = PAIRS * self.w.pair;
        assert!(start + 2 * lines + (NR - 1) * panel <= self.w.lines.len(), "panels have all steps");
        let mut w = self.w.lines[start..].as_ptr().cast::<u8>();
        let mut x = self.x.as_ptr().wrapping_add(FIRST_OF_PAIR[pair] * size_of::<f32>());
        for _ in 0..lines {
            for half in 0..2 {
                // SAFETY: as many lines of all panels, and of x for each row, lie ahead.
                unsafe {
                    let w = w.add(half * LINE_BYTES);
                    let mut weights = [A::x(s, w); NR];
                    for n in 1..NR {
                        weights[n] = A::x(s, w.add(n * panel * LINE_BYTES));
                    }
                    for m in 0..MR {
                        let x = A::splat(s, x.add(m * LINE_BYTES + half * LINE_BYTES / 2));
                        for n in 0..NR {
                            sums[half][m][n] = A::add(s, x, weights[n], sums[half][m][n]);
                        }
                    }
                }
            }
            w = w.wrapping_add(2 * LINE_BYTES);
            x = x.wrapping_add(MR * LINE_BYTES);
        }
        sums
    }
}
