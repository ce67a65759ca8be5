//! One piece of a plan: its rows' queries through its chunks.

use std::marker::PhantomData;

use super::super::kv_cache::{KvType, TILE};
use super::super::shared::Shared;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::softcap::Softcap;
use super::element::{Bf16, Bf16Dot, Element, F16, F32, Int8};
use super::plan::{Piece, Plan, Split};
use super::state::States;
use super::tile::{Attend, Chunk, MOST, Queries, SCORES, TILES, Tiles};
use super::{Attention, CHUNK, Rows};

/// One piece of a plan, and where what it computes goes.
pub(super) struct Task<'a> {
    pub(super) a: &'a Attention<'a>,
    pub(super) sequences: &'a [Rows<'a>],
    pub(super) piece: &'a Piece,
    /// What this thread will probably do next.
    pub(super) next: Option<&'a Piece>,
    pub(super) plan: &'a Plan,
    /// Query heads of a KV head. Query `i` of the piece is row `i / group` with the head's query head `i % group`.
    pub(super) group: usize,
    /// Positions that a row sees at most, its own included.
    pub(super) window: usize,
    pub(super) out: &'a Shared<'a, f32>,
    /// States of split tiles.
    pub(super) states: &'a Shared<'a, f32>,
    pub(super) room: &'a mut Room,
}

/// What a thread needs for itself; kept between calls.
#[derive(Default)]
pub(super) struct Room {
    /// Queries as they are multiplied: `[queries, width]`.
    queries: Vec<f32>,
    /// `[MOST, SCORES]`
    scores: Vec<f32>,
    states: Vec<f32>,
    /// Tiles of a chunk, where block sizes scatter them.
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
            KvType::Bf16 => unreachable!("pairs are another kernel's"),
        }
    }
}

/// A task over a cache of bfloat16, which are multiplied in pairs.
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
        let room = std::mem::take(self.room); // put back at the end
        let Room { mut queries, mut scores, states: mut own, mut gathered } = room;
        let (layout, count) = (self.a.cache.layout(), self.piece.rows.len() * self.group);
        let stride = States::stride(layout);
        self.encode_queries::<S, E>(s, &mut queries);
        grow(&mut scores, MOST * SCORES);
        grow(&mut own, count * stride);
        for chunk in self.piece.chunks.clone() {
            // SAFETY: a chunk of a tile is in one piece; only the last piece, when all others are done, takes them all.
            let shared = |split: Split| unsafe {
                self.states.part((split.states + (chunk - split.first) * count) * stride, count * stride)
            };
            let values = match self.piece.split {
                Some(split) => shared(split),
                None => &mut own[..count * stride],
            };
            let tiles = match self.is_gathered() {
                true => self.gather(chunk, &mut gathered),
                false => self.tiles(self.piece, chunk),
            };
            let next = self.after(chunk);
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
        *self.room = Room { queries, scores, states: own, gathered };
    }

    /// Context of query `i`: its own position and all before.
    #[inline(always)]
    fn context(&self, i: usize) -> usize {
        self.rows().position + self.piece.rows.start + i / self.group + 1
    }

    /// First position that query `i` sees.
    #[inline(always)]
    fn seen_from(&self, i: usize) -> usize {
        self.context(i).saturating_sub(self.window)
    }

    /// Factor of the scores that the softmax takes; capped ones are scaled already.
    #[inline(always)]
    fn scale(&self) -> f32 {
        if self.a.softcap.is_some() { 1.0 } else { self.a.scale }
    }

    /// Row of the batch and query head of query `i`.
    #[inline(always)]
    fn row_and_head(&self, i: usize) -> (usize, usize) {
        let row = self.rows().rows.start + self.piece.rows.start + i / self.group;
        (row, self.piece.kv_head * self.group + i % self.group)
    }

    #[inline(always)]
    fn encode_queries<S: Simd, E: Element>(&self, s: S, queries: &mut Vec<f32>) {
        let (width, head_dim) = (self.a.cache.layout().width, self.a.cache.shape().head_dim);
        let count = self.piece.rows.len() * self.group;
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
    fn rows(&self) -> &'a Rows<'a> {
        &self.sequences[self.piece.sequence]
    }

    /// Whether block sizes scatter the positions of a tile.
    #[inline(always)]
    fn is_gathered(&self) -> bool {
        !self.a.cache.shape().block_size.is_multiple_of(TILE)
    }

    /// How many tiles a chunk of `piece` has.
    #[inline(always)]
    fn tiles_of(&self, piece: &Piece, chunk: usize) -> usize {
        let end = self.sequences[piece.sequence].position + piece.rows.end;
        end.min((chunk + 1) * CHUNK).div_ceil(TILE) - chunk * TILES
    }

    /// The tiles of a chunk, where they lie.
    #[inline(always)]
    fn tiles(&self, piece: &Piece, chunk: usize) -> Tiles<'a> {
        let mut tiles = Tiles { tiles: [&[]; TILES], count: self.tiles_of(piece, chunk) };
        let (cache, layer) = (self.a.cache, self.a.layer);
        let per_block = cache.shape().block_size / TILE;
        let blocks = self.sequences[piece.sequence].blocks;
        for (i, tile) in tiles.tiles[..tiles.count].iter_mut().enumerate() {
            let index = chunk * TILES + i;
            let block = blocks[index / per_block] as usize;
            *tile = cache.tile(layer, block * per_block + index % per_block, piece.kv_head);
        }
        tiles
    }

    /// The tiles that come after a chunk's: of the next one, or of the next piece.
    #[inline(always)]
    fn after(&self, chunk: usize) -> Tiles<'a> {
        let next = match chunk + 1 < self.piece.chunks.end {
            true => Some((self.piece, chunk + 1)),
            false => self.next.map(|next| (next, next.chunks.start)),
        };
        match next {
            Some((piece, chunk)) if !self.is_gathered() => self.tiles(piece, chunk),
            _ => Tiles { tiles: [&[]; TILES], count: 0 },
        }
    }

    /// Puts the positions of a chunk together, one after the other.
    #[inline(never)]
    fn gather<'t>(&self, chunk: usize, gathered: &'t mut Vec<u8>) -> Tiles<'t> {
        let (cache, layout, rows) = (self.a.cache, self.a.cache.layout(), self.rows());
        let (size, bytes) = (cache.shape().block_size, layout.bytes());
        let mut tiles = Tiles { tiles: [&[]; TILES], count: self.tiles_of(self.piece, chunk) };
        gathered.clear();
        gathered.resize(tiles.count * bytes, 0);
        let start = chunk * CHUNK;
        let end = (rows.position + self.piece.rows.end).min(start + tiles.count * TILE);
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

    /// All queries that see something of the chunk, some at a time.
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
        // Rows before the chunk see nothing of it, nor do those whose window starts after it.
        let mut first = chunk.start.saturating_sub(position).min(rows) * self.group;
        let last_position = (chunk.start + CHUNK).saturating_add(self.window - 1);
        let all = last_position.saturating_sub(position).min(rows) * self.group;
        let mut look_ahead = true;
        while first < all {
            let count = at_once::<S>(all - first);
            let (mut visible, mut hidden, mut is_first) = ([0; MOST], [0; MOST], [true; MOST]);
            for i in 0..count {
                let seen_from = self.seen_from(first + i);
                visible[i] = (self.context(first + i) - chunk.start).min(CHUNK);
                hidden[i] = seen_from.saturating_sub(chunk.start);
                is_first[i] = self.piece.split.is_some() || chunk.start <= seen_from;
            }
            let queries = &Queries {
                rows: &queries[first * width..][..count * width],
                first,
                visible: &visible,
                hidden: &hidden,
                is_first: &is_first,
                look_ahead,
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
            look_ahead = false;
        }
    }

    /// Joins the states of a query's chunks to that of its first one, in order, and finishes it. `states` start with those of
    /// chunk `first`; the tile's other chunks are before the query's window or beyond its context.
    #[inline(always)]
    fn join<S: Simd>(&self, s: S, states: &mut States<'_>, first: usize, count: usize) {
        for i in 0..count {
            let state = |chunk: usize| (chunk - first) * count + i;
            let start = self.seen_from(i) / CHUNK;
            for chunk in start + 1..self.context(i).div_ceil(CHUNK) {
                states.join_states(s, state(start), state(chunk), self.scale());
            }
            self.finish(states, i, state(start));
        }
    }

    /// Writes the result of query `i`, whose state is number `state`.
    #[inline(always)]
    fn finish(&self, states: &mut States<'_>, i: usize, state: usize) {
        let head_dim = self.a.cache.shape().head_dim;
        let (row, head) = self.row_and_head(i);
        // SAFETY: each row and head is in one tile, and one piece finishes it.
        let out = unsafe { self.out.part((row * self.a.heads + head) * head_dim, head_dim) };
        states.finish(state, self.scale(), self.a.sinks.map(|sinks| sinks[head]), out);
    }
}

/// How many of `left` queries are multiplied at once next: nearly equal parts, or a few sizes where registers are few.
const fn at_once<S: Simd>(left: usize) -> usize {
    match (S::ACCUMULATORS >= 24, left) {
        (true, _) => left.div_ceil(left.div_ceil(MOST)),
        (false, 0..4) => 1 << left.ilog2(),
        (false, _) => 4,
    }
}

fn grow(values: &mut Vec<f32>, len: usize) {
    if values.len() < len {
        values.resize(len, 0.0);
    }
}
