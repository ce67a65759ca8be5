//! Some queries with one chunk: scores, softmax, weighted values. Keys and values are read once for all of them, and while they
//! are read, those of the next chunk are asked for, line by line: memory works all the time.

#![allow(clippy::needless_range_loop)] // indices run over several arrays, as in the formulas

use std::marker::PhantomData;
use std::ops::Range;

use super::super::kv_cache::{Layout, TILE};
use super::super::math::exp;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::softcap::{Capped, Softcap};
use super::CHUNK;
use super::element::Element;
use super::state::{Join, States};

/// Tiles of a chunk.
pub(super) const TILES: usize = CHUNK / TILE;
/// Queries that are multiplied at once at most.
pub(super) const MOST: usize = 8;
/// Scores of a query: a chunk's, and a vector to keep rows out of each other's cache sets.
pub(super) const SCORES: usize = CHUNK + LANES;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The tiles of a chunk, in order.
pub(super) struct Tiles<'a> {
    pub(super) tiles: [&'a [u8]; TILES],
    pub(super) count: usize,
}

/// A chunk of positions.
pub(super) struct Chunk<'a> {
    pub(super) layout: Layout,
    pub(super) tiles: Tiles<'a>,
    /// What will be read after it.
    pub(super) next: Tiles<'a>,
    /// Its first position.
    pub(super) start: usize,
    /// Factor of the scores, once capped.
    pub(super) scale: f32,
    /// What caps the scores.
    pub(super) softcap: Option<Softcap>,
}

/// Some consecutive queries of a piece.
pub(super) struct Queries<'a> {
    /// Encoded, `[queries, width]`.
    pub(super) rows: &'a [f32],
    /// Index of the first in the piece.
    pub(super) first: usize,
    /// Where in the chunk what each sees ends, ascending.
    pub(super) visible: &'a [usize; MOST],
    /// Where in the chunk it starts: before it ends, ascending.
    pub(super) hidden: &'a [usize; MOST],
    /// Whether the state of each starts with this chunk.
    pub(super) is_first: &'a [bool; MOST],
    /// Whether the next chunk is asked for meanwhile: once is enough.
    pub(super) look_ahead: bool,
}

/// [`Chunk::attend`] as a function of its own.
pub(super) struct Attend<'a, 'b, E, const N: usize> {
    pub(super) chunk: &'a Chunk<'a>,
    pub(super) queries: &'a Queries<'a>,
    pub(super) scores: &'a mut [f32],
    pub(super) states: &'a mut States<'b>,
    pub(super) element: PhantomData<E>,
}

impl<E: Element, const N: usize> Kernel for Attend<'_, '_, E, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.chunk.attend::<S, E, N>(s, self.queries, self.scores, self.states);
    }
}

impl Chunk<'_> {
    /// Attends with `N` queries and joins the result to their states.
    #[inline(always)]
    fn attend<S: Simd, E: Element, const N: usize>(
        &self,
        s: S,
        queries: &Queries<'_>,
        scores: &mut [f32],
        states: &mut States<'_>,
    ) {
        assert!(queries.rows.len() == N * self.layout.width && scores.len() >= N * SCORES);
        assert!(queries.visible[N - 1] <= self.tiles.count * TILE, "visible positions have tiles");
        let tiles = queries.visible[N - 1].div_ceil(TILE);
        let mut tile = queries.hidden[0] / TILE;
        let wide = S::ACCUMULATORS >= 24;
        while wide && tile + 2 <= tiles {
            self.scores::<S, E, N, 2>(s, tile, queries, scores);
            tile += 2;
        }
        while tile < tiles {
            self.scores::<S, E, N, 1>(s, tile, queries, scores);
            tile += 1;
        }
        let Queries { visible, hidden, .. } = *queries;
        if let Some(softcap) = self.softcap {
            for n in 0..N {
                let seen = n * SCORES + hidden[n]..n * SCORES + visible[n];
                s.call(Capped { softcap, values: &mut scores[seen] });
            }
        }
        let (scale, element) = (self.scale, PhantomData);
        let sums = s.call(Softmax::<E, N> { scores, visible, hidden, scale, element });
        let mut joins = [None; N];
        for i in 0..N {
            if E::SCALED {
                self.scale_weights(s, &mut scores[i * SCORES..(i + 1) * SCORES], hidden[i], visible[i]);
            }
            let (top, sum) = sums[i];
            if queries.is_first[i] {
                states.start(queries.first + i, top, sum);
            } else {
                joins[i] = Some(states.join(queries.first + i, top, sum, self.scale));
            }
        }
        let mut dim = 0;
        let vectors = self.layout.width / LANES;
        while wide && dim + 2 <= vectors {
            self.values::<S, E, N, 2>(s, dim, queries, scores, &joins, states);
            dim += 2;
        }
        while dim < vectors {
            self.values::<S, E, N, 1>(s, dim, queries, scores, &joins, states);
            dim += 1;
        }
    }

    /// Scores with the positions of tiles `first..first + W`, not yet scaled.
    #[inline(always)]
    fn scores<S: Simd, E: Element, const N: usize, const W: usize>(
        &self,
        s: S,
        first: usize,
        queries: &Queries<'_>,
        scores: &mut [f32],
    ) {
        let (width, keys) = (self.layout.width, self.layout.values());
        let mut tiles = [&[][..]; W];
        let mut soon = [std::ptr::null(); W];
        let next = self.after(first, W, queries);
        for w in 0..W {
            tiles[w] = &self.tiles.tiles[first + w][..self.layout.bytes()];
            soon[w] = self.soon(first + w, W);
        }
        let mut sums = [[s.zero(); W]; N];
        for i in 0..width / E::STEP {
            // SAFETY: the keys are `width / STEP` operands; a query has `width` numbers.
            unsafe {
                let mut operands = [E::load(s, tiles[0].as_ptr().add(i * E::BYTES)); W];
                for w in 1..W {
                    operands[w] = E::load(s, tiles[w].as_ptr().add(i * E::BYTES));
                }
                for n in 0..N {
                    let factor = E::factor(s, queries.rows.as_ptr().add(n * width), i * E::STEP);
                    for w in 0..W {
                        sums[n][w] = E::mul_add(s, factor, operands[w], sums[n][w]);
                    }
                }
            }
            if i * LINE < keys {
                for w in 0..W {
                    s.prefetch(soon[w].wrapping_add(i * LINE));
                }
                for tile in next {
                    s.prefetch_later(tile.as_ptr().wrapping_add(i * LINE));
                }
            }
        }
        for w in 0..W {
            for n in 0..N {
                let sum = if E::SCALED { s.mul(sums[n][w], self.scales(s, tiles[w], 0)) } else { sums[n][w] };
                let to = &mut scores[n * SCORES + (first + w) * TILE..][..LANES];
                // SAFETY: sixteen values.
                unsafe { s.store(sum, to.as_mut_ptr()) };
            }
        }
    }

    /// Scales of a tile's keys, or of its values.
    #[inline(always)]
    fn scales<S: Simd>(&self, s: S, tile: &[u8], values: usize) -> S::V {
        let scales = &tile[self.layout.scales()..][..2 * size_of::<f32>() * TILE];
        // SAFETY: twice sixteen values, and `values` is 0 or 1.
        unsafe { s.load(scales.as_ptr().cast::<f32>().add(values * TILE)) }
    }

    /// The tile that is read `distance` after `tile`, the last one at most.
    #[inline(always)]
    fn soon(&self, tile: usize, distance: usize) -> *const u8 {
        self.tiles.tiles[(tile + distance).min(self.tiles.count - 1)].as_ptr()
    }

    /// The part of the next chunk's tiles that `count` tiles from `first` on are of this one's.
    #[inline(always)]
    fn after(&self, first: usize, count: usize, queries: &Queries<'_>) -> &[&[u8]] {
        let place =
            |tile: usize| if queries.look_ahead { tile * self.next.count / self.tiles.count } else { 0 };
        &self.next.tiles[place(first)..place(first + count)]
    }

    /// Multiplies weights with their values' scales.
    #[inline(always)]
    fn scale_weights<S: Simd>(&self, s: S, weights: &mut [f32], hidden: usize, visible: usize) {
        let seen = (hidden / TILE, visible.div_ceil(TILE));
        for (tile, weights) in self.tiles.tiles.iter().zip(weights.chunks_mut(TILE)).take(seen.1).skip(seen.0)
        {
            // SAFETY: sixteen weights.
            unsafe {
                let scaled = s.mul(s.load(weights.as_ptr()), self.scales(s, tile, 1));
                s.store(scaled, weights.as_mut_ptr());
            }
        }
    }

    /// Vectors `first..first + W` of the values in `tile`, a row for each `STEP` positions.
    #[inline(always)]
    fn rows_of<E: Element, const W: usize>(&self, tile: usize, first: usize) -> *const u8 {
        let row = self.layout.width / LANES * E::BYTES;
        let values = &self.tiles.tiles[tile][self.layout.values()..];
        assert!(values.len() >= TILE / E::STEP * row && (first + W) * E::BYTES <= row, "a tile has its rows");
        values[first * E::BYTES..].as_ptr()
    }

    /// Sums of the values' vectors `first..first + W`, weighted, joined to the states.
    #[inline(always)]
    fn values<S: Simd, E: Element, const N: usize, const W: usize>(
        &self,
        s: S,
        first: usize,
        queries: &Queries<'_>,
        weights: &[f32],
        joins: &[Option<Join>; N],
        states: &mut States<'_>,
    ) {
        let Queries { visible, hidden, .. } = *queries;
        let row = self.layout.width / LANES * E::BYTES;
        let mut sums = [[s.zero(); W]; N];
        // Positions that all queries see are between those that only the first rows see and those that only the last do.
        let common = visible[0] - visible[0] % E::STEP;
        let start = hidden[N - 1].next_multiple_of(TILE).min(common);
        self.edge::<S, E, N, W>(s, first, hidden[0] / E::STEP * E::STEP..start, queries, weights, &mut sums);
        for start in (start..common).step_by(TILE) {
            let next = self.after(start / TILE, 1, queries);
            let soon = self.soon(start / TILE, 1).wrapping_add(self.layout.values() + first * E::BYTES);
            let values = self.rows_of::<E, W>(start / TILE, first);
            for step in 0..(common - start).min(TILE) / E::STEP {
                let (position, at) = (start + step * E::STEP, step * row);
                // SAFETY: a tile has a row for each step, with these operands.
                let operands = unsafe { load::<S, E, W>(s, values.add(at)) };
                for n in 0..N {
                    // SAFETY: a row of weights is longer than a chunk.
                    let factor = unsafe { E::factor(s, weights.as_ptr().add(n * SCORES), position) };
                    for w in 0..W {
                        sums[n][w] = E::mul_add(s, factor, operands[w], sums[n][w]);
                    }
                }
                for line in (0..W * E::BYTES).step_by(LINE) {
                    s.prefetch(soon.wrapping_add(at + line));
                }
                for tile in next {
                    let from = self.layout.values() + first * E::BYTES + at;
                    for line in (0..W * E::BYTES).step_by(LINE) {
                        s.prefetch_later(tile.as_ptr().wrapping_add(from + line));
                    }
                }
            }
        }
        self.edge::<S, E, N, W>(s, first, common..visible[N - 1], queries, weights, &mut sums);
        for n in 0..N {
            for w in 0..W {
                let to = &mut states.sums(queries.first + n)[(first + w) * LANES..][..LANES];
                // SAFETY: sixteen values.
                unsafe {
                    let sum = match joins[n] {
                        None => sums[n][w],
                        Some(join) => join.sums(s, s.load(to.as_ptr()), sums[n][w]),
                    };
                    s.store(sum, to.as_mut_ptr());
                }
            }
        }
    }

    /// Adds the values of positions that not all queries see. A pair of positions of which a query sees the second one is added
    /// whole: the first one's weight is zero.
    #[inline(always)]
    fn edge<S: Simd, E: Element, const N: usize, const W: usize>(
        &self,
        s: S,
        first: usize,
        positions: Range<usize>,
        queries: &Queries<'_>,
        weights: &[f32],
        sums: &mut [[S::V; W]; N],
    ) {
        let Queries { visible, hidden, .. } = *queries;
        let row = self.layout.width / LANES * E::BYTES;
        for position in positions.step_by(E::STEP) {
            let at = position % TILE / E::STEP * row;
            // SAFETY: a tile has a row for each step, with these operands.
            let operands =
                unsafe { load::<S, E, W>(s, self.rows_of::<E, W>(position / TILE, first).add(at)) };
            for n in 0..N {
                if position + E::STEP <= hidden[n] || position >= visible[n] {
                    continue;
                }
                // SAFETY: a row of weights is longer than a chunk.
                let factor = unsafe { E::factor(s, weights.as_ptr().add(n * SCORES), position) };
                for w in 0..W {
                    sums[n][w] = match position + E::STEP <= visible[n] {
                        true => E::mul_add(s, factor, operands[w], sums[n][w]),
                        false => E::mul_add_first(s, factor, operands[w], sums[n][w]),
                    };
                }
            }
        }
    }
}

/// `W` operands in a row.
///
/// # Safety
/// `at` is readable for as many.
#[inline(always)]
unsafe fn load<S: Simd, E: Element, const W: usize>(s: S, at: *const u8) -> [E::Operand<S>; W] {
    // SAFETY: by the contract.
    unsafe {
        let mut operands = [E::load(s, at); W];
        for w in 1..W {
            operands[w] = E::load(s, at.add(w * E::BYTES));
        }
        operands
    }
}

/// Turns the scores of each query into rounded `exp(scale * (score - highest))`; gives the highest scores and the sums of weights,
/// position `p` added to lane `p % 16`. Weights past the `visible` ones are zero, and those of `hidden` ones, up to a whole vector.
struct Softmax<'a, E, const N: usize> {
    /// `[N, SCORES]`
    scores: &'a mut [f32],
    visible: &'a [usize; MOST],
    hidden: &'a [usize; MOST],
    scale: f32,
    element: PhantomData<E>,
}

impl<E: Element, const N: usize> Kernel for Softmax<'_, E, N> {
    type Output = [(f32, f32); N];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [(f32, f32); N] {
        // Query after query in each of three passes: a query's own instructions wait for each other, those of several do not.
        let mut rows = [std::ptr::null_mut(); N];
        let mut results = [(0.0, 0.0); N];
        for n in 0..N {
            let row = &mut self.scores[n * SCORES..][..self.visible[n].next_multiple_of(LANES)];
            row[self.visible[n]..].fill(f32::NEG_INFINITY);
            let start = self.hidden[n] / LANES * LANES;
            row[start..self.hidden[n]].fill(f32::NEG_INFINITY);
            results[n].0 = highest(&row[start..]);
            rows[n] = row.as_mut_ptr();
        }
        let mut sums = [s.zero(); N];
        for n in 0..N {
            let top = results[n].0;
            for start in (self.hidden[n] / LANES * LANES..self.visible[n]).step_by(LANES) {
                // SAFETY: sixteen scores of the row, read before their weights or later ones are written.
                unsafe {
                    let mut weights = rows[n].add(start).cast::<[f32; LANES]>().read();
                    for weight in &mut weights {
                        *weight = exp((*weight - top) * self.scale);
                    }
                    sums[n] = s.add(sums[n], E::put(s, rows[n], start, weights));
                }
            }
        }
        for n in 0..N {
            results[n].1 = s.sum(sums[n]);
        }
        results
    }
}

/// The highest of whole vectors of scores; of such that are no number, none.
#[inline(always)]
fn highest(scores: &[f32]) -> f32 {
    let mut highest = [f32::NEG_INFINITY; LANES];
    for vector in scores.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            highest[i] = if vector[i] > highest[i] { vector[i] } else { highest[i] };
        }
    }
    let mut lanes = LANES;
    while lanes > 1 {
        lanes /= 2;
        for i in 0..lanes {
            highest[i] = if highest[i + lanes] > highest[i] { highest[i + lanes] } else { highest[i] };
        }
    }
    highest[0]
}
