//! One tile of rows with one KV head. Keys and values of a block are read once for up to eight queries.

#![allow(clippy::needless_range_loop)] // indices run over several arrays, as in the formulas

use super::super::math::exp;
use super::super::norm::load_up_to;
use super::super::shared::Shared;
use super::super::simd::{Kernel, LANES, Simd};
use super::{Attention, Rows};

/// One tile of rows with one KV head, and where its scores may be kept.
pub(super) struct Task<'a> {
    pub(super) tile: Tile<'a>,
    pub(super) scores: &'a mut Vec<f32>,
}

/// One tile of rows with one KV head. Its query `i` is row `i / group` with the head's query head `i % group`.
pub(super) struct Tile<'a> {
    pub(super) a: &'a Attention<'a>,
    pub(super) rows: &'a Rows<'a>,
    pub(super) kv_head: usize,
    /// Query heads of a KV head.
    pub(super) group: usize,
    pub(super) out: &'a Shared<'a, f32>,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, scores } = self;
        let context = tile.rows.position + tile.rows.rows.len();
        assert!(
            tile.rows.blocks.len() * tile.a.cache.shape().block_size >= context,
            "a block table covers its context"
        );
        // One vector longer than the context, so that whole vectors can be stored.
        let stride = context.next_multiple_of(LANES) + LANES;
        let most = if S::ACCUMULATORS >= 24 { 8 } else { 4 };
        if scores.len() < most * stride {
            scores.resize(most * stride, 0.0);
        }
        let queries = tile.rows.rows.len() * tile.group;
        let mut first = 0;
        while first < queries {
            let count = most.min(queries - first);
            macro_rules! counts {
                ($($n:literal),*) => { match count {
                    $($n if $n <= S::ACCUMULATORS => tile.queries::<S, $n>(s, first, scores, stride),)*
                    _ => unreachable!("every number of queries has an arm"),
                } };
            }
            counts!(1, 2, 3, 4, 5, 6, 7, 8);
            first += count;
        }
    }
}

impl Tile<'_> {
    /// Queries `first..first + N` from start to end; row `i` of `scores`, `stride` values long, is query `first + i`'s.
    #[inline(always)]
    fn queries<S: Simd, const N: usize>(&self, s: S, first: usize, scores: &mut [f32], stride: usize) {
        let (a, head_dim) = (self.a, self.a.cache.shape().head_dim);
        let (mut q, mut contexts, mut places) = ([&[][..]; N], [0; N], [0; N]);
        for i in 0..N {
            let (row, head) =
                ((first + i) / self.group, self.kv_head * self.group + (first + i) % self.group);
            q[i] = &a.q[(self.rows.rows.start + row) * a.stride + head * head_dim..][..head_dim];
            contexts[i] = self.rows.position + row + 1; // ascending in i
            places[i] = ((self.rows.rows.start + row) * a.heads + head) * head_dim;
        }
        self.scores::<S, N>(s, &q, contexts[N - 1], scores, stride);
        let mut sums = [0.0; N];
        for i in 0..N {
            sums[i] = softmax(s, &mut scores[i * stride..][..contexts[i]], a.scale);
        }
        let mut dim = 0;
        while dim < head_dim {
            let outputs = self.outputs::<S, N>(s, dim, scores, stride, &contexts);
            for i in 0..N {
                let count = LANES.min(head_dim - dim);
                // SAFETY: each row and head is in one task.
                let out = unsafe { self.out.part(places[i] + dim, count) };
                // SAFETY: `count` values of `out` are written.
                unsafe { s.store_part(s.mul(outputs[i], s.splat(1.0 / sums[i])), out.as_mut_ptr(), count) };
            }
            dim += LANES;
        }
    }

    /// Scores of all queries with positions `0..context`, not yet scaled.
    #[inline(always)]
    fn scores<S: Simd, const N: usize>(
        &self,
        s: S,
        q: &[&[f32]; N],
        context: usize,
        scores: &mut [f32],
        stride: usize,
    ) {
        let (block_size, head_dim) = (self.a.cache.shape().block_size, self.a.cache.shape().head_dim);
        for (index, block) in self.rows.blocks[..context.div_ceil(block_size)].iter().enumerate() {
            let (keys, _) = self.a.cache.keys_values(self.a.layer, *block as usize, self.kv_head);
            let start = index * block_size;
            let mut slot = 0;
            while slot < block_size.min(context - start) {
                let mut sums = [s.zero(); N];
                for dim in 0..head_dim {
                    let keys = &keys[dim * block_size + slot..(dim + 1) * block_size];
                    let keys = load_up_to(s, keys);
                    for i in 0..N {
                        // SAFETY: a query has `head_dim` values.
                        let q = unsafe { *q[i].get_unchecked(dim) };
                        sums[i] = s.fma(s.splat(q), keys, sums[i]);
                    }
                }
                for i in 0..N {
                    // Lanes past the block are overwritten by the next one, those past the context are not read.
                    let to = &mut scores[i * stride + start + slot..][..LANES];
                    // SAFETY: sixteen values.
                    unsafe { s.store(sums[i], to.as_mut_ptr()) };
                }
                slot += LANES;
            }
        }
    }

    /// Sums of values `dim..dim + 16` weighted by the scores, over each query's positions in ascending order.
    #[inline(always)]
    fn outputs<S: Simd, const N: usize>(
        &self,
        s: S,
        dim: usize,
        scores: &[f32],
        stride: usize,
        contexts: &[usize; N],
    ) -> [S::V; N] {
        assert!(scores.len() >= N * stride && contexts[N - 1] <= stride, "scores have a row for each query");
        let (block_size, head_dim) = (self.a.cache.shape().block_size, self.a.cache.shape().head_dim);
        let mut sums = [s.zero(); N];
        for (index, block) in self.rows.blocks[..contexts[N - 1].div_ceil(block_size)].iter().enumerate() {
            let (_, values) = self.a.cache.keys_values(self.a.layer, *block as usize, self.kv_head);
            let start = index * block_size;
            // Positions all queries see, then those that only the later rows see.
            let (end, common) =
                ((start + block_size).min(contexts[N - 1]), (start + block_size).min(contexts[0]));
            for position in start..common {
                let values = load_up_to(s, &values[(position - start) * head_dim..][dim..head_dim]);
                for i in 0..N {
                    // SAFETY: a row of scores is longer than any context; see the assertion.
                    let weight = unsafe { *scores.get_unchecked(i * stride + position) };
                    sums[i] = s.fma(s.splat(weight), values, sums[i]);
                }
            }
            for position in common.max(start)..end {
                let values = load_up_to(s, &values[(position - start) * head_dim..][dim..head_dim]);
                for i in 0..N {
                    if position < contexts[i] {
                        sums[i] = s.fma(s.splat(scores[i * stride + position]), values, sums[i]);
                    }
                }
            }
        }
        sums
    }
}

/// Turns scores into `exp(scale * (score - highest))` and returns their sum: position `p` adds to lane `p % 16`.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], scale: f32) -> f32 {
    let mut highest = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = scores.as_chunks::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            highest[i] = if chunk[i] > highest[i] { chunk[i] } else { highest[i] };
        }
    }
    for i in 0..rest.len() {
        highest[i] = if rest[i] > highest[i] { rest[i] } else { highest[i] };
    }
    let mut top = highest[0];
    for i in 1..LANES {
        top = if highest[i] > top { highest[i] } else { top };
    }
    for score in scores.iter_mut() {
        *score = exp((*score - top) * scale);
    }
    let mut sums = s.zero();
    let mut at = 0;
    while at < scores.len() {
        sums = s.add(sums, load_up_to(s, &scores[at..]));
        at += LANES;
    }
    s.sum(sums)
}
