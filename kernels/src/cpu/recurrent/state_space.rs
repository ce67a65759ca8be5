//! Mamba-2, a state space model (Dao & Gu 2024, arXiv 2405.21060).

use super::super::Cpu;
use super::cache::StateCache;
use super::layer::{Layer, Taps};
use super::output::{Gating, Normal};
use super::scratch::Scratch;
use super::shape::{Kind, StateShape};
use super::stateful_rows::StatefulRows;

/// Sizes of a layer of [`state_space`], or of one rank's part of it: groups may be divided, with their heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpaceShape {
    /// Groups of heads that share `B` and `C`.
    pub groups: usize,
    /// Heads, a multiple of `groups`. Head `h` is in group `h / (heads / groups)`.
    pub heads: usize,
    /// Dimensions of `B` and `C`, a multiple of four.
    pub state_dim: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Positions that the convolution sees, its own included: 2 to 4.
    pub taps: usize,
}

impl StateSpaceShape {
    /// Convolved values of a row: `x` of all heads, then `B` and `C` of all groups.
    pub fn channels(&self) -> usize {
        StateShape::from(self).channels()
    }

    /// Values of all heads of a row.
    pub fn values(&self) -> usize {
        StateShape::from(self).values()
    }

    /// Width of a projected row `[z | x | B | C | dt]`: the output's gates, the channels, and a logit of its
    /// time for each head.
    pub fn width(&self) -> usize {
        StateShape::from(self).width()
    }
}

impl From<&StateSpaceShape> for StateShape {
    fn from(shape: &StateSpaceShape) -> Self {
        let StateSpaceShape { groups, heads, state_dim, head_dim, taps } = *shape;
        Self {
            kind: Kind::StateSpace,
            key_heads: groups,
            value_heads: heads,
            key_dim: state_dim,
            value_dim: head_dim,
            taps,
        }
    }
}

impl From<StateSpaceShape> for StateShape {
    fn from(shape: StateSpaceShape) -> Self {
        Self::from(&shape)
    }
}

/// The weights of a layer besides its products.
#[derive(Debug, Clone, Copy)]
pub struct StateSpaceWeights<'a> {
    /// `[channels, taps]`: the convolution, oldest position first.
    pub taps: &'a [f32],
    /// `[channels]`: what is added to the convolution; empty for zeros.
    pub bias: &'a [f32],
    /// `[heads]`: `exp(A_log)`.
    pub decay_rate: &'a [f32],
    /// `[heads]`: what is added to the logits of time (`dt_bias`).
    pub time_bias: &'a [f32],
    /// Least and most time that a row takes (`time_step_limit`).
    pub time_limits: (f32, f32),
    /// `[heads]`: how much of `x` is added to the outputs (`D`).
    pub skip: &'a [f32],
    /// `[values]`: scale of the normalised outputs.
    pub norm: &'a [f32],
    /// Values that are normalised together, consecutive ones of a row.
    pub norm_width: usize,
    /// What the normalisation adds to the mean of squares.
    pub eps: f32,
}

/// Computes one layer for the rows of all `sequences`, and moves their states on. `projected` is
/// `[rows, width]`, and `out` is `[rows, values]`.
///
/// With `time = softplus(dt + time_bias)`, a head's matrix `S` becomes `exp(-decay_rate * time) * S +
/// time * B x^T`, and its output is `C^T S + skip * x`. Outputs are gated with `silu(z)`, then normalised.
///
/// # Panics
/// If the cache has another kind of layers, the shapes disagree, sequences share a slot or rows, or
/// a position is outside its slot's reach.
#[allow(clippy::too_many_arguments)]
pub fn state_space(
    cpu: &mut Cpu,
    cache: &mut StateCache,
    layer: usize,
    weights: &StateSpaceWeights<'_>,
    projected: &[f32],
    sequences: &[StatefulRows],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let shape = cache.shape();
    assert_eq!(shape.kind, Kind::StateSpace, "the cache has states of this kind");
    let StateSpaceWeights { taps, bias, decay_rate, time_bias, skip, norm: scales, eps, .. } = *weights;
    let layer = Layer {
        index: layer,
        shape,
        convolution: Taps { taps, bias },
        decay_rate,
        decay_bias: time_bias,
        limits: weights.time_limits,
        skip,
        output: Normal { scales, width: weights.norm_width, eps, gating: Gating::SiluBefore },
    };
    layer.run(cpu, cache, projected, sequences, out, scratch);
}
