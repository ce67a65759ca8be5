//! Computes one piece of a plan: the queries of its rows against its chunks.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::disjoint::DisjointMut;
use super::super::kv_cache::{KvType, TILE};
use super::super::simd::{Kernel, LANES, Simd};
use super::super::softcap::Softcap;
use super::element::{Bf16, Bf16Dot, Element, F16, F32, Fp8, Int8};
use super::plan::{Piece, Plan, Split};
use super::query::{Attention, CHUNK, SequenceRows, seen_from, seen_to};
use super::state::States;
use super::tile::{Attend, Chunk, MAX_QUERIES, Queries, SCORE_STRIDE, TILES_PER_CHUNK, Tiles};

/// One piece of a plan with its inputs and outputs.
pub(super) struct Task<'a> {
    pub(super) a: &'a Attention<'a>,
    pub(super) sequences: &'a [SequenceRows<'a>],
    pub(super) piece: &'a Piece,
    /// The piece that this thread will probably compute next.
    pub(super) next: Option<&'a Piece>,
    pub(super) plan: &'a Plan,
    /// Query heads of the piece's KV head. Query `i` of the piece is row `i / heads.len()` and the KV head's
    /// query head `i % heads.len()`.
    pub(super) heads: Range<usize>,
    /// Most positions that a row sees, including its own.
    pub(super) window: usize,
    pub(super) out: &'a DisjointMut<'a, f32>,
    /// States of split tiles.
    pub(super) states: &'a DisjointMut<'a, f32>,
    pub(super) scratch: &'a mut ThreadScratch,
}

/// Buffers of one thread, reused between calls.
#[derive(Default)]
pub(super) struct ThreadScratch {
    /// Encoded queries, `[queries, width]`.
    queries: Vec<f32>,
    /// Scores `[MAX_QUERIES, SCORE_STRIDE]` of the queries in progress.
    scores: Vec<f32>,
    states: Vec<f32>,
    /// Contiguous tiles of a chunk, for block sizes that are not a multiple of [`TILE`].
    gathered: Vec<u8>,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.a.cache.layout().kind {
            KvType::F32 => self.with::<S, F32>(s),
            KvType::F16 => self.with::<S, F16>(s),
            KvType::Int8 => self.with::<S, Int8>(s),
            KvType::Fp8 => self.with::<S, Fp8>(s),
            KvType::Bf16 => unreachable!("PairTask handles bfloat16"),
        }
    }
}

/// A task over a bfloat16 cache, whose numbers are multiplied in pairs.
pub(super) struct PairTask<'a>(pub(super) Task<'a>);

impl Kernel for PairTask<'_> {
    type Output = ();
    const USES_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::HAS_DOT { self.0.with::<S, Bf16Dot>(s) } else { self.0.with::<S, Bf16>(s) }
    }
}

impl<'a> Task<'a> {
    #[inline(always)]
    fn with<S: Simd, E: Element>(self, s: S) {
        let scratch = std::mem::take(self.scratch); // put back at the end
        let ThreadScratch { mut queries, mut scores, states: mut own, mut gathered } = scratch;
        let (layout, count) = (self.a.cache.layout(), self.piece.rows.len() * self.heads.len());
        let stride = States::stride(layout);
        self.encode_queries::<S, E>(s, &mut queries);
        grow(&mut scores, MAX_QUERIES * SCORE_STRIDE);
        grow(&mut own, count * stride);
        for chunk in self.piece.chunks.clone() {
            // SAFETY: each chunk of a tile is in one piece. Only the last piece takes all of them, once the
            // others are done.
            let shared = |split: Split| unsafe {
                self.states.part((split.states + (chunk - split.first) * count) * stride, count * stride)
            };
            let values = match self.piece.split {
                Some(split) => shared(split),
                None => &mut own[..count * stride],
            };
            let tiles = if self.is_gathered() {
                self.gather(chunk, &mut gathered)
            } else {
                self.tiles(self.piece, chunk)
            };
            let next = self.next_tiles(chunk);
            let softcap = self.a.softcap.map(|cap| Softcap { cap, factor: self.a.scale / cap });
            let chunk = Chunk { layout, tiles, next, start: chunk * CHUNK, scale: self.scale(), softcap };
            self.chunk::<S, E>(s, &chunk, &queries, &mut scores, &mut States::new(values, stride));
        }
        match self.piece.split {
            None => {
                let states = &mut States::new(&mut own[..count * stride], stride);
                (0..count).for_each(|i| self.finish(states, i, i));
            }
            Some(split) if self.plan.finish(&split) => {
                // SAFETY: all other pieces of the tile are done.
                let all = unsafe { self.states.part(split.states * stride, split.chunks * count * stride) };
                self.join(s, &mut States::new(all, stride), split.first, count);
            }
            Some(_) => {}
        }
        *self.scratch = ThreadScratch { queries, scores, states: own, gathered };
    }

    /// Position of query `i`.
    #[inline(always)]
    fn position(&self, i: usize) -> usize {
        self.rows().position + self.piece.rows.start + i / self.heads.len()
    }

    /// End of the positions that query `i` sees.
    #[inline(always)]
    fn seen_to(&self, i: usize) -> usize {
        seen_to(self.position(i), self.ahead(), self.rows().end)
    }

    /// Most positions after its own that a row sees.
    #[inline(always)]
    fn ahead(&self) -> usize {
        self.a.ahead as usize
    }

    /// First position that query `i` sees.
    #[inline(always)]
    fn seen_from(&self, i: usize) -> usize {
        seen_from(self.position(i), self.window, self.a.is_chunked)
    }

    /// Factor that the softmax applies to scores; capped scores are already scaled.
    #[inline(always)]
    fn scale(&self) -> f32 {
        if self.a.softcap.is_some() { 1.0 } else { self.a.scale }
    }

    /// Batch row and query head of query `i`.
    #[inline(always)]
    fn row_and_head(&self, i: usize) -> (usize, usize) {
        let row = self.rows().rows.start + self.piece.rows.start + i / self.heads.len();
        (row, self.heads.start + i % self.heads.len())
    }

    #[inline(always)]
    fn encode_queries<S: Simd, E: Element>(&self, s: S, queries: &mut Vec<f32>) {
        let (width, head_dim) = (self.a.cache.layout().width, self.a.cache.shape().head_dim);
        let count = self.piece.rows.len() * self.heads.len();
        grow(queries, count * width);
        for (i, to) in queries.chunks_exact_mut(width).take(count).enumerate() {
            let (row, head) = self.row_and_head(i);
            let from = &self.a.q[row * self.a.stride + head * head_dim..][..head_dim];
            for (vector, from) in from.chunks(LANES).enumerate() {
                let mut values = [0.0; LANES];
                values[..from.len()].copy_from_slice(from);
                // SAFETY: `width` is `head_dim` in whole vectors.
                unsafe { E::put(s, to.as_mut_ptr(), vector * LANES, values) };
            }
        }
    }

    /// The piece's sequence.
    #[inline(always)]
    fn rows(&self) -> &'a SequenceRows<'a> {
        &self.sequences[self.piece.sequence]
    }

    /// Whether tiles have to be gathered, because a tile's positions lie in several blocks.
    #[inline(always)]
    fn is_gathered(&self) -> bool {
        !self.a.cache.shape().block_size.is_multiple_of(TILE)
    }

    /// Number of tiles that `piece` reads of `chunk`.
    #[inline(always)]
    fn tiles_of(&self, piece: &Piece, chunk: usize) -> usize {
        let rows = &self.sequences[piece.sequence];
        let end = seen_to(rows.position + piece.rows.end - 1, self.ahead(), rows.end);
        end.min((chunk + 1) * CHUNK).div_ceil(TILE) - chunk * TILES_PER_CHUNK
    }

    /// The tiles of a chunk, in the cache.
    #[inline(always)]
    fn tiles(&self, piece: &Piece, chunk: usize) -> Tiles<'a> {
        let mut tiles = Tiles { tiles: [&[]; TILES_PER_CHUNK], count: self.tiles_of(piece, chunk) };
        let (cache, layer) = (self.a.cache, self.a.layer);
        let per_block = cache.shape().block_size / TILE;
        let blocks = self.sequences[piece.sequence].blocks;
        for (i, tile) in tiles.tiles[..tiles.count].iter_mut().enumerate() {
            let index = chunk * TILES_PER_CHUNK + i;
            let block = blocks[index / per_block] as usize;
            *tile = cache.tile(layer, block * per_block + index % per_block, piece.kv_head);
        }
        tiles
    }

    /// The tiles to read after `chunk`: those of the piece's next chunk, or of the next piece's first one.
    #[inline(always)]
    fn next_tiles(&self, chunk: usize) -> Tiles<'a> {
        let next = if chunk + 1 < self.piece.chunks.end {
            Some((self.piece, chunk + 1))
        } else {
            self.next.map(|next| (next, next.chunks.start))
        };
        match next {
            Some((piece, chunk)) if !self.is_gathered() => self.tiles(piece, chunk),
            _ => Tiles { tiles: [&[]; TILES_PER_CHUNK], count: 0 },
        }
    }

    /// Copies the positions of a chunk into contiguous tiles.
    #[inline(never)]
    fn gather<'t>(&self, chunk: usize, gathered: &'t mut Vec<u8>) -> Tiles<'t> {
        let (cache, layout, rows) = (self.a.cache, self.a.cache.layout(), self.rows());
        let (size, bytes) = (cache.shape().block_size, layout.bytes());
        let mut tiles = Tiles { tiles: [&[]; TILES_PER_CHUNK], count: self.tiles_of(self.piece, chunk) };
        gathered.clear();
        gathered.resize(tiles.count * bytes, 0);
        let start = chunk * CHUNK;
        let end = seen_to(rows.position + self.piece.rows.end - 1, self.ahead(), rows.end);
        let end = end.min(start + tiles.count * TILE);
        for position in start.max(self.seen_from(0))..end {
            let slot = rows.blocks[position / size] as usize * size + position % size;
            let from = cache.tile(self.a.layer, slot / TILE, self.piece.kv_head);
            let to = &mut gathered[(position - start) / TILE * bytes..][..bytes];
            layout.for_each_number(slot % TILE, position % TILE, |at, place, bytes| {
                to[place..place + bytes].copy_from_slice(&from[at..at + bytes]);
            });
        }
        for (to, from) in tiles.tiles.iter_mut().zip(gathered.chunks_exact(bytes)) {
            *to = from;
        }
        tiles
    }

    /// Computes a chunk for all queries that see part of it, up to [`MAX_QUERIES`] at a time.
    #[inline(always)]
    fn chunk<S: Simd, E: Element>(
        &self,
        s: S,
        chunk: &Chunk<'_>,
        queries: &[f32],
        scores: &mut [f32],
        states: &mut States<'_>,
    ) {
        let width = chunk.layout.width;
        let (position, rows) = (self.rows().position + self.piece.rows.start, self.piece.rows.len());
        // Skip rows that see nothing from the chunk on, and rows whose window starts after it.
        let sees_on = chunk.start.saturating_sub(position).saturating_sub(self.ahead());
        let mut first = sees_on.min(rows) * self.heads.len();
        let end = chunk.start + CHUNK;
        let last_position = if self.a.is_chunked {
            end.div_ceil(self.window).saturating_mul(self.window)
        } else {
            end.saturating_add(self.window - 1)
        };
        let all = last_position.saturating_sub(position).min(rows) * self.heads.len();
        let mut prefetch_next = true;
        while first < all {
            let count = at_once::<S>(all - first);
            let (mut visible, mut hidden, mut is_first) =
                ([0; MAX_QUERIES], [0; MAX_QUERIES], [true; MAX_QUERIES]);
            for i in 0..count {
                let seen_from = self.seen_from(first + i);
                visible[i] = (self.seen_to(first + i) - chunk.start).min(CHUNK);
                hidden[i] = seen_from.saturating_sub(chunk.start);
                is_first[i] = self.piece.split.is_some() || chunk.start <= seen_from;
            }
            let queries = &Queries {
                rows: &queries[first * width..][..count * width],
                first,
                visible: &visible,
                hidden: &hidden,
                is_first: &is_first,
                prefetch_next,
            };
            macro_rules! counts {
                ($($n:literal),*) => { match count {
                    $($n if const { at_once::<S>($n) == $n } => {
                        let element = PhantomData::<E>;
                        s.call(Attend::<E, $n> { chunk, queries, scores, states, element });
                    })*
                    _ => unreachable!("every number of queries has an arm"),
                } };
            }
            counts!(1, 2, 3, 4, 5, 6, 7, 8);
            first += count;
            prefetch_next = false;
        }
    }

    /// For each query, joins the states of later chunks to that of its first chunk, in order, and writes the
    /// result. `states` starts with the tile's chunk `first`; chunks before or after what a query
    /// sees are skipped.
    #[inline(always)]
    fn join<S: Simd>(&self, s: S, states: &mut States<'_>, first: usize, count: usize) {
        for i in 0..count {
            let state = |chunk: usize| (chunk - first) * count + i;
            let start = self.seen_from(i) / CHUNK;
            for chunk in start + 1..self.seen_to(i).div_ceil(CHUNK) {
                states.join_states(s, state(start), state(chunk), self.scale());
            }
            self.finish(states, i, state(start));
        }
    }

    /// Writes the result of query `i` from state number `state`.
    #[inline(always)]
    fn finish(&self, states: &mut States<'_>, i: usize, state: usize) {
        let value_dim = self.a.cache.shape().value_dim();
        let (row, head) = self.row_and_head(i);
        // SAFETY: each row and head is in one tile, and only one piece finishes the tile.
        let out = unsafe { self.out.part((row * self.a.heads + head) * value_dim, value_dim) };
        states.finish(state, self.scale(), self.a.sinks.map(|sinks| sinks[head]), out);
    }
}

/// How many of `left` queries to multiply at once: nearly equal parts, or one of a few sizes if registers are
/// few.
const fn at_once<S: Simd>(left: usize) -> usize {
    match (S::ACCUMULATORS >= 24, left) {
        (true, _) => left.div_ceil(left.div_ceil(MAX_QUERIES)),
        (false, 0..4) => 1 << left.ilog2(),
        (false, _) => 4,
    }
}

fn grow(values: &mut Vec<f32>, len: usize) {
    if values.len() < len {
        values.resize(len, 0.0);
    }
}
