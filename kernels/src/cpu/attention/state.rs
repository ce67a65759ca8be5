//! Partial softmax states of queries, and how a further chunk is joined to one (Milakov & Gimelshein 2018).

use super::super::kv_cache::Layout;
use super::super::math::exp;
use super::super::simd::{LANES, Simd};

/// States of several queries. Each has `width` weighted sums of values, the highest score, and the sum of
/// weights.
pub(super) struct States<'a> {
    values: &'a mut [f32],
    stride: usize,
}

/// Factors to rescale the old state and a new chunk by.
#[derive(Clone, Copy)]
pub(super) struct Join {
    pub(super) old: f32,
    pub(super) new: f32,
}

impl<'a> States<'a> {
    /// Number of `f32` in a state.
    pub(super) fn stride(layout: Layout) -> usize {
        layout.width + LANES // a vector holds the two numbers
    }

    pub(super) fn new(values: &'a mut [f32], stride: usize) -> Self {
        assert!(values.len().is_multiple_of(stride), "whole states");
        Self { values, stride }
    }

    /// The weighted sums of query `i`.
    #[inline(always)]
    pub(super) fn sums(&mut self, i: usize) -> &mut [f32] {
        &mut self.values[i * self.stride..(i + 1) * self.stride - LANES]
    }

    /// Highest score and sum of weights of query `i`.
    #[inline(always)]
    fn softmax(&mut self, i: usize) -> &mut [f32; 2] {
        let at = (i + 1) * self.stride - LANES;
        self.values[at..].first_chunk_mut().expect("sixteen values follow the sums")
    }

    /// Sets the state of query `i` to its first chunk: highest score `top`, sum of weights `sum`.
    #[inline(always)]
    pub(super) fn start(&mut self, i: usize, top: f32, sum: f32) {
        *self.softmax(i) = [top, sum];
    }

    /// Joins a further chunk's highest score and sum of weights. Rescale the weighted sums by the returned
    /// factors.
    #[inline(always)]
    pub(super) fn join(&mut self, i: usize, top: f32, sum: f32, scale: f32) -> Join {
        let [old_top, old_sum] = *self.softmax(i);
        let highest = if top > old_top { top } else { old_top };
        let join = Join { old: exp((old_top - highest) * scale), new: exp((top - highest) * scale) };
        *self.softmax(i) = [highest, sum.mul_add(join.new, old_sum * join.old)];
        join
    }

    /// Joins state `from`, which covers a later chunk, to state `to`.
    #[inline(always)]
    pub(super) fn join_states<S: Simd>(&mut self, s: S, to: usize, from: usize, scale: f32) {
        let [top, sum] = *self.softmax(from);
        let join = self.join(to, top, sum, scale);
        for at in (0..self.stride - LANES).step_by(LANES) {
            // SAFETY: `sums` has whole vectors.
            unsafe {
                let new = s.load(self.sums(from)[at..].as_ptr());
                let old = s.load(self.sums(to)[at..].as_ptr());
                s.store(join.sums(s, old, new), self.sums(to)[at..].as_mut_ptr());
            }
        }
    }

    /// Writes the weighted mean of query `i`'s values. `sink` is a logit that has a weight but no value.
    #[inline(always)]
    pub(super) fn finish(&mut self, i: usize, scale: f32, sink: Option<f32>, out: &mut [f32]) {
        let [top, sum] = *self.softmax(i);
        // A sink far above all scores gets a weight of e^88, which also reduces the others to nothing.
        let per_weight = 1.0 / sink.map_or(sum, |sink| sum + exp(sink - top * scale));
        for (out, sum) in out.iter_mut().zip(self.sums(i)) {
            *out = *sum * per_weight;
        }
    }
}

impl Join {
    /// Joins the weighted sums of a further chunk, `new`, to `old`.
    #[inline(always)]
    pub(super) fn sums<S: Simd>(self, s: S, old: S::V, new: S::V) -> S::V {
        s.fma(new, s.splat(self.new), s.mul(old, s.splat(self.old)))
    }
}
