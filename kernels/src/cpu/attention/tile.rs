//! Computes a few queries against one chunk: scores, softmax, weighted values. Keys and values are read once
//! for all these queries. Meanwhile those of the next chunk are prefetched line by line, which keeps memory
//! busy all the time.

#![allow(clippy::needless_range_loop)] // indices are used with several arrays, as in the formulas

use std::marker::PhantomData;
use std::ops::Range;

use super::super::kv_cache::{Layout, TILE};
use super::super::math::exp;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::softcap::{Capped, Softcap};
use super::element::Element;
use super::query::CHUNK;
use super::state::{Join, States};

pub(super) const TILES_PER_CHUNK: usize = CHUNK / TILE;
/// Most queries that are multiplied at once.
pub(super) const MAX_QUERIES: usize = 8;
/// Values from one query's scores to the next: a chunk, and a vector that keeps rows out of each other's
/// cache sets.
pub(super) const SCORE_STRIDE: usize = CHUNK + LANES;
/// Bytes in a cache line.
const LINE: usize = 64;

/// The tiles of a chunk, in order.
pub(super) struct Tiles<'a> {
    pub(super) tiles: [&'a [u8]; TILES_PER_CHUNK],
    pub(super) count: usize,
}

/// A chunk of positions.
pub(super) struct Chunk<'a> {
    pub(super) layout: Layout,
    pub(super) tiles: Tiles<'a>,
    /// Tiles to prefetch, because they are read after this chunk.
    pub(super) next: Tiles<'a>,
    /// First position of the chunk.
    pub(super) start: usize,
    /// Factor that the softmax applies to scores after capping.
    pub(super) scale: f32,
    /// Caps the scores, if set.
    pub(super) softcap: Option<Softcap>,
}

/// Consecutive queries of a piece.
pub(super) struct Queries<'a> {
    /// Encoded queries, `[queries, width]`.
    pub(super) rows: &'a [f32],
    /// Index of the first query within the piece.
    pub(super) first: usize,
    /// End of the visible positions within the chunk, ascending from query to query.
    pub(super) visible: &'a [usize; MAX_QUERIES],
    /// Start of the visible positions within the chunk, ascending.
    pub(super) hidden: &'a [usize; MAX_QUERIES],
    /// Whether this is the query's first chunk, which starts its state.
    pub(super) is_first: &'a [bool; MAX_QUERIES],
    /// Whether to prefetch the next chunk. The first queries of a chunk do so; once is enough.
    pub(super) prefetch_next: bool,
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
    /// Computes `N` queries and joins the results to their states.
    #[inline(always)]
    fn attend<S: Simd, E: Element, const N: usize>(
        &self,
        s: S,
        queries: &Queries<'_>,
        scores: &mut [f32],
        states: &mut States<'_>,
    ) {
        assert!(queries.rows.len() == N * self.layout.width && scores.len() >= N * SCORE_STRIDE);
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
                let seen = n * SCORE_STRIDE + hidden[n]..n * SCORE_STRIDE + visible[n];
                s.call(Capped { softcap, values: &mut scores[seen] });
            }
        }
        let (scale, element) = (self.scale, PhantomData);
        let sums = s.call(Softmax::<E, N> { scores, visible, hidden, scale, element });
        let mut joins = [None; N];
        for i in 0..N {
            if E::SCALED {
                let weights = &mut scores[i * SCORE_STRIDE..(i + 1) * SCORE_STRIDE];
                self.scale_weights(s, weights, hidden[i], visible[i]);
            }
            let (top, sum) = sums[i];
            if queries.is_first[i] {
                states.start(queries.first + i, top, sum);
            } else {
                joins[i] = Some(states.join(queries.first + i, top, sum, self.scale));
            }
        }
        let mut dim = 0;
        let vectors = self.layout.value_vectors();
        if self.layout.latent.is_some() {
            (0..vectors)
                .for_each(|dim| self.latent_values::<S, E, N>(s, dim, queries, scores, &joins, states));
            return;
        }
        while wide && dim + 2 <= vectors {
            self.values::<S, E, N, 2>(s, dim, queries, scores, &joins, states);
            dim += 2;
        }
        while dim < vectors {
            self.values::<S, E, N, 1>(s, dim, queries, scores, &joins, states);
            dim += 1;
        }
    }

    /// Writes the scores for the positions of tiles `first..first + W`, not yet scaled.
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
        let mut near = [std::ptr::null(); W];
        let next = self.prefetch_targets(first, W, queries);
        for w in 0..W {
            tiles[w] = &self.tiles.tiles[first + w][..self.layout.bytes()];
            near[w] = self.tile_ahead(first + w, W);
        }
        let mut sums = [[s.zero(); W]; N];
        for i in 0..width / E::PER_LANE {
            // SAFETY: the keys are `width / PER_LANE` operands, and a query has `width` numbers.
            unsafe {
                let mut operands = [E::load(s, tiles[0].as_ptr().add(i * E::BYTES)); W];
                for w in 1..W {
                    operands[w] = E::load(s, tiles[w].as_ptr().add(i * E::BYTES));
                }
                for n in 0..N {
                    let factor = E::factor(s, queries.rows.as_ptr().add(n * width), i * E::PER_LANE);
                    for w in 0..W {
                        sums[n][w] = E::mul_add(s, factor, operands[w], sums[n][w]);
                    }
                }
            }
            if i * LINE < keys {
                for w in 0..W {
                    s.prefetch(near[w].wrapping_add(i * LINE));
                }
                for tile in next {
                    s.prefetch_later(tile.as_ptr().wrapping_add(i * LINE));
                }
            }
        }
        for w in 0..W {
            for n in 0..N {
                let sum = if E::SCALED { s.mul(sums[n][w], self.scales(s, tiles[w], 0)) } else { sums[n][w] };
                let to = &mut scores[n * SCORE_STRIDE + (first + w) * TILE..][..LANES];
                // SAFETY: sixteen values.
                unsafe { s.store(sum, to.as_mut_ptr()) };
            }
        }
    }

    /// Scales of a tile's keys (`values` = 0) or values (`values` = 1).
    #[inline(always)]
    fn scales<S: Simd>(&self, s: S, tile: &[u8], values: usize) -> S::V {
        let values = if self.layout.latent.is_some() { 0 } else { values };
        let scales = &tile[self.layout.scales() + values * size_of::<f32>() * TILE..];
        assert!(scales.len() >= size_of::<f32>() * TILE, "a tile has its scales");
        // SAFETY: the slice has 16 scales.
        unsafe { s.load(scales.as_ptr().cast::<f32>()) }
    }

    /// Pointer to the tile that is read `distance` tiles later, at most the chunk's last one.
    #[inline(always)]
    fn tile_ahead(&self, tile: usize, distance: usize) -> *const u8 {
        self.tiles.tiles[(tile + distance).min(self.tiles.count - 1)].as_ptr()
    }

    /// Tiles of the next chunk to prefetch during `count` tiles of this chunk from `first` on: a proportional
    /// part.
    #[inline(always)]
    fn prefetch_targets(&self, first: usize, count: usize, queries: &Queries<'_>) -> &[&[u8]] {
        let place =
            |tile: usize| if queries.prefetch_next { tile * self.next.count / self.tiles.count } else { 0 };
        &self.next.tiles[place(first)..place(first + count)]
    }

    /// Multiplies weights by the scales of their values.
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

    /// Pointer to vectors `first..first + W` of the values in `tile`, which has a row for each `PER_LANE`
    /// positions.
    #[inline(always)]
    fn rows_of<E: Element, const W: usize>(&self, tile: usize, first: usize) -> *const u8 {
        let row = self.layout.width / LANES * E::BYTES;
        let values = &self.tiles.tiles[tile][self.layout.values()..];
        assert!(
            values.len() >= TILE / E::PER_LANE * row && (first + W) * E::BYTES <= row,
            "a tile has its rows"
        );
        values[first * E::BYTES..].as_ptr()
    }

    /// Computes the weighted sums of the values' vectors `first..first + W` and joins them to the states.
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
        // All queries see the positions in the middle. Those before it only the first queries see, those
        // after it only the last.
        let common = visible[0] - visible[0] % E::PER_LANE;
        let start = hidden[N - 1].next_multiple_of(TILE).min(common);
        let before = hidden[0] / E::PER_LANE * E::PER_LANE..start;
        self.edge::<S, E, N, W>(s, first, before, queries, weights, &mut sums);
        for start in (start..common).step_by(TILE) {
            let next = self.prefetch_targets(start / TILE, 1, queries);
            let near = self.tile_ahead(start / TILE, 1).wrapping_add(self.layout.values() + first * E::BYTES);
            let values = self.rows_of::<E, W>(start / TILE, first);
            for row_index in 0..(common - start).min(TILE) / E::PER_LANE {
                let (position, at) = (start + row_index * E::PER_LANE, row_index * row);
                // SAFETY: a tile has this row, with these operands.
                let operands = unsafe { load::<S, E, W>(s, values.add(at)) };
                for n in 0..N {
                    // SAFETY: a row of weights is longer than a chunk.
                    let factor = unsafe { E::factor(s, weights.as_ptr().add(n * SCORE_STRIDE), position) };
                    for w in 0..W {
                        sums[n][w] = E::mul_add(s, factor, operands[w], sums[n][w]);
                    }
                }
                for line in (0..W * E::BYTES).step_by(LINE) {
                    s.prefetch(near.wrapping_add(at + line));
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

    /// As [`Chunk::values`], for vector `first` of values that are the start of their keys: keys have a
    /// position in each lane, so lanes are summed at the end.
    #[inline(always)]
    fn latent_values<S: Simd, E: Element, const N: usize>(
        &self,
        s: S,
        first: usize,
        queries: &Queries<'_>,
        weights: &[f32],
        joins: &[Option<Join>; N],
        states: &mut States<'_>,
    ) {
        let (keys, dims) = (self.layout.values(), first * LANES);
        assert!(dims + LANES <= self.layout.width, "a key has these dimensions");
        for n in 0..N {
            let (hidden, visible) = (queries.hidden[n], queries.visible[n]);
            let mut sums = [s.zero(); LANES];
            for tile in hidden / TILE..visible.div_ceil(TILE) {
                let from = self.tiles.tiles[tile][..keys].as_ptr();
                let seen = hidden.saturating_sub(tile * TILE)..(visible - tile * TILE).min(TILE);
                // SAFETY: a row of weights is longer than a chunk, and the keys have these dimensions.
                unsafe {
                    let row = weights.as_ptr().add(n * SCORE_STRIDE);
                    let weights = only(s, E::factors(s, row, tile * TILE), &seen);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let key = only(s, E::dimension(s, from, dims + i), &seen);
                        *sum = s.fma(weights, key, *sum);
                    }
                }
            }
            let lanes = s.transpose(sums);
            let sum = lanes[1..].iter().fold(lanes[0], |sum, lane| s.add(sum, *lane));
            let to = &mut states.sums(queries.first + n)[dims..][..LANES];
            // SAFETY: sixteen values.
            unsafe {
                let sum = joins[n].map_or(sum, |join| join.sums(s, s.load(to.as_ptr()), sum));
                s.store(sum, to.as_mut_ptr());
            }
        }
    }

    /// Adds the values of positions that only some queries see. If a query sees only the second position of a
    /// pair, the whole pair is added: the first one's weight is zero.
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
        for position in positions.step_by(E::PER_LANE) {
            let at = position % TILE / E::PER_LANE * row;
            // SAFETY: a tile has this row, with these operands.
            let operands =
                unsafe { load::<S, E, W>(s, self.rows_of::<E, W>(position / TILE, first).add(at)) };
            for n in 0..N {
                if position + E::PER_LANE <= hidden[n] || position >= visible[n] {
                    continue;
                }
                // SAFETY: a row of weights is longer than a chunk.
                let factor = unsafe { E::factor(s, weights.as_ptr().add(n * SCORE_STRIDE), position) };
                for w in 0..W {
                    sums[n][w] = if position + E::PER_LANE <= visible[n] {
                        E::mul_add(s, factor, operands[w], sums[n][w])
                    } else {
                        E::mul_add_first(s, factor, operands[w], sums[n][w])
                    };
                }
            }
        }
    }
}

/// `vector` with zeros in the lanes that are not `seen`, which may hold anything.
#[inline(always)]
fn only<S: Simd>(s: S, vector: S::V, seen: &Range<usize>) -> S::V {
    if *seen == (0..LANES) {
        return vector;
    }
    let (mut lanes, mut kept) = ([0.0; LANES], [0.0; LANES]);
    // SAFETY: sixteen values each.
    unsafe {
        s.store(vector, lanes.as_mut_ptr());
        kept[seen.clone()].copy_from_slice(&lanes[seen.clone()]);
        s.load(kept.as_ptr())
    }
}

/// Loads `W` consecutive operands.
///
/// # Safety
/// All of them are readable from `at` on.
#[inline(always)]
unsafe fn load<S: Simd, E: Element, const W: usize>(s: S, at: *const u8) -> [E::Operand<S>; W] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut operands = [E::load(s, at); W];
        for w in 1..W {
            operands[w] = E::load(s, at.add(w * E::BYTES));
        }
        operands
    }
}

/// Replaces the scores of each query by `exp(scale * (score - highest))`, rounded. Returns each query's
/// highest score and sum of weights, with position `p` added to lane `p % 16`. Weights of invisible positions
/// in the first and last vector become zero.
struct Softmax<'a, E, const N: usize> {
    /// Scores `[N, SCORE_STRIDE]`, replaced by weights.
    scores: &'a mut [f32],
    visible: &'a [usize; MAX_QUERIES],
    hidden: &'a [usize; MAX_QUERIES],
    scale: f32,
    element: PhantomData<E>,
}

impl<E: Element, const N: usize> Kernel for Softmax<'_, E, N> {
    type Output = [(f32, f32); N];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [(f32, f32); N] {
        // All queries go through each pass together: instructions of one query depend on each other, those of
        // several do not.
        let mut rows = [std::ptr::null_mut(); N];
        let mut results = [(0.0, 0.0); N];
        for n in 0..N {
            let row = &mut self.scores[n * SCORE_STRIDE..][..self.visible[n].next_multiple_of(LANES)];
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

/// Maximum over whole vectors of scores, ignoring NaN; -inf if all are NaN.
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
