//! Gated short convolutions, as in LFM2 (Liquid AI 2025, arXiv 2511.23404): layers whose state is only a
//! window.

use super::super::disjoint::DisjointMut;
use super::super::simd::{Kernel, Simd};
use super::super::{Cpu, VALUES_PER_TASK, for_each_row_of, for_each_run};
use super::cache::StateCache;
use super::convolve::{Convolution, To};
use super::layer::{Taps, check_rows};
use super::pass::grow;
use super::plan::{Run, Stretch, runs};
use super::rows::{BatchRows, KeptRows, RawRows};
use super::run::step;
use super::scratch::{ConvolutionBuffers, Scratch};
use super::shape::{Kind, StateShape};
use super::stateful_rows::StatefulRows;

/// Channels that are convolved at once.
const CHANNELS_AT_ONCE: usize = 256;

/// Sizes of a layer of [`short_convolution`], or of one rank's part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// Convolved values of a row.
    pub channels: usize,
    /// Positions that the convolution sees, its own included: 2 to 4.
    pub taps: usize,
}

impl ConvolutionShape {
    /// Width of a projected row `[B | C | x]`.
    pub fn width(&self) -> usize {
        StateShape::from(self).width()
    }
}

impl From<&ConvolutionShape> for StateShape {
    fn from(shape: &ConvolutionShape) -> Self {
        let ConvolutionShape { channels, taps } = *shape;
        Self { kind: Kind::Convolution, key_heads: 0, value_heads: 1, key_dim: 0, value_dim: channels, taps }
    }
}

impl From<ConvolutionShape> for StateShape {
    fn from(shape: ConvolutionShape) -> Self {
        Self::from(&shape)
    }
}

/// The weights of a layer besides its products.
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionWeights<'a> {
    /// `[channels, taps]`: the convolution, oldest position first.
    pub taps: &'a [f32],
    /// `[channels]`: what is added to the convolution; empty for zeros.
    pub bias: &'a [f32],
}

/// Computes one layer for the rows of all `sequences`, and moves their states on: `C * convolution(B * x)`.
/// `projected` is `[rows, width]`, and `out` is `[rows, channels]`.
///
/// # Panics
/// If the cache has another kind of layers, the shapes disagree, sequences share a slot or rows, or
/// a position is outside its slot's reach.
#[allow(clippy::too_many_arguments)]
pub fn short_convolution(
    cpu: &mut Cpu,
    cache: &mut StateCache,
    layer: usize,
    weights: &ConvolutionWeights<'_>,
    projected: &[f32],
    sequences: &[StatefulRows],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let shape = cache.shape();
    assert_eq!(shape.kind, Kind::Convolution, "the cache has states of this kind");
    check_rows(&shape, projected, out);
    let weights = Taps { taps: weights.taps, bias: weights.bias };
    weights.check(&shape);
    let Scratch {
        plan, convolution: ConvolutionBuffers { stretches, runs: runs_of, products, zeros }, ..
    } = scratch;
    products.grow(out.len());
    grow(zeros, CHANNELS_AT_ONCE);
    let products = &mut products[..out.len()];
    multiply(cpu, &shape, projected, products);
    let batch = BatchRows::new(shape, products);
    step(cpu, cache, layer, sequences, plan, |cpu, cache, pieces| {
        cache.stretches(layer, pieces, stretches);
        runs(stretches, runs_of);
        let [windows, pending] = cache.rows();
        let raw = RawRows { batch, windows, pending, zeros };
        convolve(cpu, &raw, weights, (stretches, runs_of), projected, out);
        let [windows, pending] = cache.rows_mut();
        let kept = KeptRows { batch, windows, pending };
        for_each_row_of(cpu, stretches.len(), shape.channels(), |index, _| {
            // SAFETY: slots differ, and each is in one task.
            unsafe { kept.keep(&stretches[index]) };
        });
        stretches.iter().for_each(|stretch| cache.set_mark(stretch.part, stretch.mark()));
    });
}

/// Sets `products` to `B * x`.
fn multiply(cpu: &mut Cpu, shape: &StateShape, projected: &[f32], products: &mut [f32]) {
    let (width, channels) = (shape.width(), shape.channels());
    let (rows, products) = (products.len() / channels, DisjointMut::new(products));
    for_each_row_of(cpu, rows, channels, |row, _| {
        let (b, x) = projected[row * width..][..width].split_at(2 * channels);
        // SAFETY: each row is in one task.
        let out = unsafe { products.part(row * channels, channels) };
        out.iter_mut().zip(b).zip(x).for_each(|((out, b), x)| *out = b * x);
    });
}

/// Writes the outputs of a pass. A unit of work is a run of rows of some channels.
fn convolve(
    cpu: &mut Cpu,
    raw: &RawRows<'_>,
    weights: Taps<'_>,
    (stretches, runs): (&[Stretch], &[Run]),
    projected: &[f32],
    out: &mut [f32],
) {
    let (isa, shape) = (cpu.isa, *raw.shape());
    let (channels, width) = (shape.channels(), shape.width());
    let units = channels.div_ceil(CHANNELS_AT_ONCE);
    let rows: usize = stretches.iter().map(Stretch::len).sum();
    let values_per_unit = rows * channels / (runs.len() * units).max(1);
    let per_task = (VALUES_PER_TASK / values_per_unit.max(1)).max(1);
    let out = &DisjointMut::new(out);
    for_each_run(cpu, runs.len() * units, per_task, |index, _| {
        let (run, first) = (&runs[index / units], index % units * CHANNELS_AT_ONCE);
        let stretch = &stretches[run.stretch];
        let rows = run.rows.start.max(stretch.replayed)..run.rows.end;
        let Some(batch_row) = stretch.in_batch(rows.start).filter(|_| !rows.is_empty()) else { return };
        let of_unit = first..channels.min(first + CHANNELS_AT_ONCE);
        isa.run(Outputs {
            convolution: Convolution { raw, stretch, rows, weights },
            gates: &projected[batch_row * width + channels + first..],
            channels: of_unit,
            first: batch_row * channels + first,
            out,
        });
    });
}

/// Some channels of a run of rows.
struct Outputs<'a, 'o> {
    convolution: Convolution<'a>,
    channels: std::ops::Range<usize>,
    /// From the first row's gates of these channels on.
    gates: &'a [f32],
    /// Place of the first row's outputs of these channels.
    first: usize,
    /// `[rows, channels]`. No other task takes these channels of these rows.
    out: &'a DisjointMut<'o, f32>,
}

impl Kernel for Outputs<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { convolution, channels, gates, first, out } = self;
        let shape = *convolution.raw.shape();
        let (stride, rows, count) = (shape.channels(), convolution.rows.len(), channels.len());
        let at = out.pointer(first, (rows - 1) * stride + count);
        // SAFETY: the rows end inside `out`, and no other task takes these channels.
        unsafe { convolution.run(s, channels, To { at, stride }) };
        for row in 0..rows {
            // SAFETY: as above.
            let out = unsafe { out.part(first + row * stride, count) };
            out.iter_mut().zip(&gates[row * shape.width()..]).for_each(|(out, gate)| *out *= gate);
        }
    }
}
