//! Gated delta networks (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464), and Kimi Delta Attention (Kimi
//! Team 2025, arXiv 2510.26692), where each dimension of a key has a decay of its own.

use super::super::Cpu;
use super::cache::StateCache;
use super::layer::{Layer, Taps};
use super::output::{Gating, Normal};
use super::scratch::Scratch;
use super::shape::{Kind, StateShape};
use super::stateful_rows::StatefulRows;

/// Sizes of a layer of [`gated_delta`], or of one rank's part of it: the heads may be divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`. Head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Dimensions of a query or a key, a multiple of four.
    pub key_dim: usize,
    /// Dimensions of a value.
    pub value_dim: usize,
    /// Positions that the convolution sees, its own included: 2 to 4.
    pub taps: usize,
}

impl DeltaShape {
    /// Convolved values of a row: queries, keys and values of all heads, in this order.
    pub fn channels(&self) -> usize {
        StateShape::from(self).channels()
    }

    /// Values of all heads of a row.
    pub fn values(&self) -> usize {
        StateShape::from(self).values()
    }

    /// Width of a projected row `[q | k | v | z | b | a]`: queries, keys, values, the output's gates, and for
    /// each value head the logits of beta and of the decay.
    pub fn width(&self) -> usize {
        StateShape::from(self).width()
    }
}

impl From<&DeltaShape> for StateShape {
    fn from(shape: &DeltaShape) -> Self {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, taps } = *shape;
        Self { kind: Kind::Delta, key_heads, value_heads, key_dim, value_dim, taps }
    }
}

impl From<DeltaShape> for StateShape {
    fn from(shape: DeltaShape) -> Self {
        Self::from(&shape)
    }
}

/// Sizes of a layer of [`keyed_delta`], or of one rank's part of it: the heads may be divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedDeltaShape {
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Dimensions of a query or a key, a multiple of four.
    pub key_dim: usize,
    /// Dimensions of a value.
    pub value_dim: usize,
    /// Positions that the convolution sees, its own included: 2 to 4.
    pub taps: usize,
}

impl KeyedDeltaShape {
    /// Convolved values of a row: queries, keys and values of all heads, in this order.
    pub fn channels(&self) -> usize {
        StateShape::from(self).channels()
    }

    /// Values of all heads of a row.
    pub fn values(&self) -> usize {
        StateShape::from(self).values()
    }

    /// Width of a projected row `[q | k | v | z | b | a]`: queries, keys, values, the output's gates, the
    /// logits of beta of each head, and those of the decays of each head and dimension of a key.
    pub fn width(&self) -> usize {
        StateShape::from(self).width()
    }
}

impl From<&KeyedDeltaShape> for StateShape {
    fn from(shape: &KeyedDeltaShape) -> Self {
        let KeyedDeltaShape { heads, key_dim, value_dim, taps } = *shape;
        Self { kind: Kind::KeyedDelta, key_heads: heads, value_heads: heads, key_dim, value_dim, taps }
    }
}

impl From<KeyedDeltaShape> for StateShape {
    fn from(shape: KeyedDeltaShape) -> Self {
        Self::from(&shape)
    }
}

/// The weights of a layer besides its products.
#[derive(Debug, Clone, Copy)]
pub struct DeltaWeights<'a> {
    /// `[channels, taps]`: the convolution, oldest position first.
    pub taps: &'a [f32],
    /// `[value_heads]`: `exp(A_log)`.
    pub decay_rate: &'a [f32],
    /// What is added to each of the decays' logits (`dt_bias`).
    pub decay_bias: &'a [f32],
    /// `[value_dim]`: scale of the normalised outputs.
    pub norm: &'a [f32],
    /// What the normalisation adds to the mean of squares.
    pub eps: f32,
}

/// Computes one layer's gated delta rule for the rows of all `sequences`, and moves their states on.
/// `projected` is `[rows, width]`, and `out` is `[rows, values]`.
///
/// Outputs are normalised, then gated with `silu(z)`.
///
/// # Panics
/// If the cache has another kind of layers, the shapes disagree, sequences share a slot or rows, or
/// a position is outside its slot's reach.
#[allow(clippy::too_many_arguments)]
pub fn gated_delta(
    cpu: &mut Cpu,
    cache: &mut StateCache,
    layer: usize,
    weights: &DeltaWeights<'_>,
    projected: &[f32],
    sequences: &[StatefulRows],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let layer = weights.layer(layer, cache, Kind::Delta, Gating::SiluAfter);
    layer.run(cpu, cache, projected, sequences, out, scratch);
}

/// As [`gated_delta`], with a decay for each dimension of a key, and outputs that are gated with
/// `sigmoid(z)`.
///
/// # Panics
/// As [`gated_delta`].
#[allow(clippy::too_many_arguments)]
pub fn keyed_delta(
    cpu: &mut Cpu,
    cache: &mut StateCache,
    layer: usize,
    weights: &DeltaWeights<'_>,
    projected: &[f32],
    sequences: &[StatefulRows],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let layer = weights.layer(layer, cache, Kind::KeyedDelta, Gating::SigmoidAfter);
    layer.run(cpu, cache, projected, sequences, out, scratch);
}

impl<'a> DeltaWeights<'a> {
    fn layer(&self, index: usize, cache: &StateCache, kind: Kind, gating: Gating) -> Layer<'a> {
        let shape = cache.shape();
        assert_eq!(shape.kind, kind, "the cache has states of this kind");
        Layer {
            index,
            shape,
            convolution: Taps { taps: self.taps, bias: &[] },
            decay_rate: self.decay_rate,
            decay_bias: self.decay_bias,
            limits: (0.0, f32::INFINITY),
            skip: &[],
            output: Normal { scales: self.norm, width: shape.value_dim, eps: self.eps, gating },
        }
    }
}
