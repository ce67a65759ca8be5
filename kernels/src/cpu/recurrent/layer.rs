//! A layer of any kind that has matrices, as its kind's own weights describe it.

use super::output::Normal;
use super::shape::{Kind, StateShape};

/// A layer's shape and weights.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    /// Number of the layer in the cache.
    pub(super) index: usize,
    pub(super) shape: StateShape,
    pub(super) convolution: Taps<'a>,
    /// `[value_heads]`
    pub(super) decay_rate: &'a [f32],
    /// As many as logits of decays.
    pub(super) decay_bias: &'a [f32],
    /// Least and most time that a row takes, in a state space.
    pub(super) limits: (f32, f32),
    /// `[value_heads]`: factors of the values that are added to the outputs, in a state space.
    pub(super) skip: &'a [f32],
    pub(super) output: Normal<'a>,
}

/// Weights of a convolution.
#[derive(Clone, Copy)]
pub(super) struct Taps<'a> {
    /// `[channels, taps]`
    pub(super) taps: &'a [f32],
    /// `[channels]`, or empty for zeros.
    pub(super) bias: &'a [f32],
}

impl Taps<'_> {
    /// # Panics
    /// If there are not as many weights as the shape has.
    pub(super) fn check(&self, shape: &StateShape) {
        assert_eq!(self.taps.len(), shape.channels() * shape.taps, "taps are [channels, taps]");
        assert!(self.bias.is_empty() || self.bias.len() == shape.channels(), "biases are [channels]");
    }
}

impl Layer<'_> {
    /// # Panics
    /// If the shapes disagree.
    pub(super) fn check(&self, projected: &[f32], out: &[f32]) {
        let shape = &self.shape;
        check_rows(shape, projected, out);
        self.convolution.check(shape);
        let rates = if shape.kind == Kind::KeyedDelta { shape.key_dim } else { 1 };
        assert_eq!(self.decay_rate.len(), shape.value_heads, "a rate for each value head");
        assert_eq!(self.decay_bias.len(), shape.value_heads * rates, "a bias for each decay");
        assert!(self.skip.is_empty() || self.skip.len() == shape.value_heads, "a factor for each head");
        self.output.check(shape);
    }
}

/// # Panics
/// If `projected` and `out` are not rows of the shape, equally many.
pub(super) fn check_rows(shape: &StateShape, projected: &[f32], out: &[f32]) {
    let rows = projected.len() / shape.width();
    assert!(projected.len() == rows * shape.width(), "projected is [rows, {}]", shape.width());
    assert!(out.len() == rows * shape.values(), "out is [rows, {}]", shape.values());
}
