//! Queries, keys and values of heads: causal convolution, SiLU, and normalisation of queries and keys.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::norm::load_up_to;
use super::super::simd::{Kernel, LANES, Simd};
use super::activations::{silu, softplus};
use super::layer::{Layer, Taps};
use super::plan::{ROWS_PER_RUN, Stretch};
use super::rows::RawRows;
use super::rule::{Rule, decay};
use super::shape::MOST_TAPS;

/// What is added to a sum of squares before its root.
const EPS: f32 = 1e-6;

/// A run of rows of one stretch, and the weights of the convolution.
#[derive(Clone)]
pub(super) struct Convolution<'a> {
    pub(super) raw: &'a RawRows<'a>,
    pub(super) stretch: &'a Stretch,
    /// Rows of the stretch, at most [`ROWS_PER_RUN`].
    pub(super) rows: Range<usize>,
    pub(super) weights: Taps<'a>,
}

/// Rows that a convolution writes.
#[derive(Clone, Copy)]
pub(super) struct To {
    /// The first row's values.
    pub(super) at: *mut f32,
    /// From a row to the next one.
    pub(super) stride: usize,
}

impl Convolution<'_> {
    /// Convolves `channels` of all rows. Each sum is one chain that begins with the bias and goes over the
    /// taps, oldest first.
    ///
    /// # Safety
    /// `to` is writable for `channels` in each row, and nothing else accesses these values.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(&self, s: S, channels: Range<usize>, to: To) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.raw.shape().taps {
                2 => self.run_of::<S, 2>(s, channels, to),
                3 => self.run_of::<S, 3>(s, channels, to),
                _ => self.run_of::<S, 4>(s, channels, to),
            }
        }
    }

    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn run_of<S: Simd, const TAPS: usize>(&self, s: S, channels: Range<usize>, to: To) {
        let (width, rows) = (channels.len(), self.rows.len());
        let mut inputs = [std::ptr::null(); ROWS_PER_RUN + MOST_TAPS - 1];
        for (i, input) in inputs[..rows + TAPS - 1].iter_mut().enumerate() {
            let row = self.raw.channels(self.stretch, self.rows.start + i, TAPS - 1, channels.clone());
            *input = row.as_ptr();
        }
        let taps = &self.weights.taps[TAPS * channels.start..TAPS * channels.end].as_chunks::<TAPS>().0;
        for first in (0..width).step_by(LANES) {
            let count = LANES.min(width - first);
            let taps = columns(s, &taps[first..first + count]);
            let bias = self.weights.bias.get(channels.start + first..);
            let bias = bias.map_or(s.zero(), |bias| load_up_to(s, bias));
            for row in 0..rows {
                let inputs = &inputs[row..row + TAPS];
                // The next head's channels, which the next unit of work convolves. Rows are far apart, so
                // that processors do not foresee this.
                s.prefetch(inputs[TAPS - 1].wrapping_add(width + first).cast());
                // SAFETY: inputs have `width` values; outputs as the caller guarantees.
                unsafe {
                    let mut sum = bias;
                    for (input, weight) in inputs.iter().zip(taps) {
                        sum = s.fma(load(s, input.wrapping_add(first), count), weight, sum);
                    }
                    store(s, sum, to.at.wrapping_add(row * to.stride + first), count);
                }
            }
        }
    }
}

/// Loads `count` values and pads with zeros.
///
/// # Safety
/// `from` is readable for `count <= 16` values.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, from: *const f32, count: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe { if count == LANES { s.load(from) } else { s.load_part(from, count) } }
}

/// Stores the first `count` values.
///
/// # Safety
/// `to` is writable for `count <= 16` values.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, v: S::V, to: *mut f32, count: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { if count == LANES { s.store(v, to) } else { s.store_part(v, to, count) } }
}

/// The columns of up to sixteen rows, padded with zeros.
#[inline(always)]
fn columns<S: Simd, const COLUMNS: usize>(s: S, rows: &[[f32; COLUMNS]]) -> [S::V; COLUMNS] {
    let mut padded = [[0.0; COLUMNS]; LANES];
    let rows = rows.first_chunk().unwrap_or_else(|| {
        padded[..rows.len()].copy_from_slice(rows);
        &padded
    });
    std::array::from_fn(|column| {
        let lanes: [f32; LANES] = std::array::from_fn(|i| rows[i][column]);
        // SAFETY: sixteen values.
        unsafe { s.load(lanes.as_ptr()) }
    })
}

/// Queries and keys of one key head, into `out` `[rows, key_width]` of the rule.
pub(super) struct Keys<'a, R> {
    pub(super) layer: &'a Layer<'a>,
    pub(super) convolution: Convolution<'a>,
    pub(super) key_head: usize,
    pub(super) out: &'a mut [f32],
    pub(super) rule: PhantomData<R>,
}

impl<R: Rule> Kernel for Keys<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { convolution, key_head, out, layer, .. } = self;
        let (shape, rows) = (&layer.shape, convolution.rows.clone());
        let (key_dim, stride) = (shape.key_dim, R::key_width(shape.key_dim));
        assert_eq!(out.len(), rows.len() * stride, "out is [rows, {stride}]");
        let query_scale = 1.0 / (key_dim as f32).sqrt();
        for (channels, first) in [(shape.query(key_head), 0), (shape.key(key_head), key_dim)] {
            let to = To { at: out[first..].as_mut_ptr(), stride };
            // SAFETY: `out` has these rows, and is borrowed.
            unsafe { convolution.run(s, channels, to) };
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(stride)) {
            let (both, decayed) = out.split_at_mut(2 * key_dim);
            both.iter_mut().for_each(|x| *x = silu(*x));
            let (query, key) = both.split_at_mut(key_dim);
            if R::IS_DELTA {
                let scale = per_length(s, query) * query_scale;
                query.iter_mut().for_each(|x| *x *= scale);
                let scale = per_length(s, key);
                key.iter_mut().for_each(|x| *x *= scale);
            }
            if R::DECAYS_BY_KEY {
                let (decayed, decays) = decayed.split_at_mut(key_dim);
                let logits = convolution.raw.logits(convolution.stretch, row);
                let of_head = key_head * key_dim..(key_head + 1) * key_dim;
                let logits = &logits[shape.value_heads..][of_head.clone()];
                let (rate, biases) = (layer.decay_rate[key_head], &layer.decay_bias[of_head]);
                for ((to, logit), bias) in decays.iter_mut().zip(logits).zip(biases) {
                    *to = decay(rate, softplus(logit + bias));
                }
                decayed.iter_mut().zip(&*key).zip(&*decays).for_each(|((to, key), by)| *to = key * by);
            }
        }
    }
}

/// Values of one head, into `out` `[rows, columns]`. Columns beyond the head's become zero.
pub(super) struct Values<'a> {
    pub(super) convolution: Convolution<'a>,
    pub(super) head: usize,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Values<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (shape, stride) = (self.convolution.raw.shape(), self.convolution.raw.shape().columns());
        assert_eq!(self.out.len(), self.convolution.rows.len() * stride, "out is [rows, {stride}]");
        if stride > shape.value_dim {
            self.out.fill(0.0);
        }
        let to = To { at: self.out.as_mut_ptr(), stride };
        // SAFETY: `out` has these rows, and is borrowed.
        unsafe { self.convolution.run(s, shape.value(self.head), to) };
        // Element by element, so any vector width gives the same bits; the compiler vectorises it.
        self.out.iter_mut().for_each(|x| *x = silu(*x));
    }
}

/// `1 / sqrt(sum(x²) + EPS)`.
#[inline(always)]
fn per_length<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut squares = s.zero();
    for at in (0..x.len()).step_by(LANES) {
        let x = load_up_to(s, &x[at..]);
        squares = s.fma(x, x, squares);
    }
    1.0 / (s.sum(squares) + EPS).sqrt()
}
