//! What a row does to the matrix of a head, as types that kernels are compiled for.

use super::super::math::exp;
use super::activations::{sigmoid, softplus};

/// How a row changes a head's matrix.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Gates {
    /// Factor of the whole matrix; 1 if each dimension of a key has its own.
    pub(super) decay: f32,
    /// Factor of what is added to it.
    pub(super) beta: f32,
}

/// Logits of a head's gates, and the head's weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Logits {
    pub(super) b: f32,
    pub(super) a: f32,
    pub(super) decay_rate: f32,
    pub(super) decay_bias: f32,
    /// Least and most time that a row takes.
    pub(super) limits: (f32, f32),
}

/// A rule by which rows change matrices.
pub(super) trait Rule: Copy + Send + Sync {
    /// Whether a row first subtracts what its key reads from its value. Then queries and keys have length
    /// one.
    const IS_DELTA: bool;
    /// Whether each dimension of a key has a decay of its own.
    const DECAYS_BY_KEY: bool;

    /// The gates of a head.
    fn gates(logits: Logits) -> Gates;

    /// Numbers of a row of a key head: query and key; if dimensions have decays also the key times its
    /// decays, and the decays.
    fn key_width(key_dim: usize) -> usize {
        if Self::DECAYS_BY_KEY { 4 * key_dim } else { 2 * key_dim }
    }
}

/// The gated delta rule.
#[derive(Clone, Copy)]
pub(super) struct Delta;

impl Rule for Delta {
    const IS_DELTA: bool = true;
    const DECAYS_BY_KEY: bool = false;

    #[inline(always)]
    fn gates(Logits { b, a, decay_rate, decay_bias, .. }: Logits) -> Gates {
        Gates { decay: decay(decay_rate, softplus(a + decay_bias)), beta: sigmoid(b) }
    }
}

/// The gated delta rule with a decay for each dimension of a key.
#[derive(Clone, Copy)]
pub(super) struct KeyedDelta;

impl Rule for KeyedDelta {
    const IS_DELTA: bool = true;
    const DECAYS_BY_KEY: bool = true;

    #[inline(always)]
    fn gates(logits: Logits) -> Gates {
        Gates { decay: 1.0, beta: sigmoid(logits.b) }
    }
}

/// A state space: values are added as they are, for the time that the row takes.
#[derive(Clone, Copy)]
pub(super) struct StateSpace;

impl Rule for StateSpace {
    const IS_DELTA: bool = false;
    const DECAYS_BY_KEY: bool = false;

    #[inline(always)]
    fn gates(Logits { a, decay_rate, decay_bias, limits, .. }: Logits) -> Gates {
        let time = softplus(a + decay_bias);
        // Comparisons keep NaN, unlike `clamp`.
        let time = if time < limits.0 { limits.0 } else { time };
        let time = if time > limits.1 { limits.1 } else { time };
        Gates { decay: decay(decay_rate, time), beta: time }
    }
}

/// What is left of a state after some time.
#[inline(always)]
pub(super) fn decay(rate: f32, time: f32) -> f32 {
    exp(-(rate * time))
}
