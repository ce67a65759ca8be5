//! Buffers that calls reuse.

use super::super::aligned::Aligned;
use super::pass;
use super::plan::{Plan, Run, Stretch};

/// Buffers of a layer of any kind, reused between calls. They grow to the largest size seen.
#[derive(Default)]
pub struct Scratch {
    pub(super) plan: Plan,
    pub(super) pass: pass::Buffers,
    pub(super) convolution: ConvolutionBuffers,
}

/// Buffers of a short convolution.
#[derive(Default)]
pub(super) struct ConvolutionBuffers {
    pub(super) stretches: Vec<Stretch>,
    pub(super) runs: Vec<Run>,
    /// `[rows, channels]`: `B * x`.
    pub(super) products: Aligned<f32>,
    /// Channels before the first position.
    pub(super) zeros: Vec<f32>,
}
