//! The outputs of heads: normalised and gated.

use super::super::norm::per_rms;
use super::super::simd::{Kernel, Simd};
use super::activations::{sigmoid, silu};
use super::shape::StateShape;

/// How outputs are gated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gating {
    /// `norm(out) * silu(gate)`
    SiluAfter,
    /// `norm(out) * sigmoid(gate)`
    SigmoidAfter,
    /// `norm(out * silu(gate))`
    SiluBefore,
}

/// The normalisation of outputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normal<'a> {
    /// Scales of the values of one group, or of all.
    pub(super) scales: &'a [f32],
    /// Values that are normalised together.
    pub(super) width: usize,
    /// What is added to the mean of squares.
    pub(super) eps: f32,
    pub(super) gating: Gating,
}

impl Normal<'_> {
    /// # Panics
    /// If rows of the shape's values are not whole groups.
    pub(super) fn check(&self, shape: &StateShape) {
        let (values, width) = (shape.values(), self.width);
        assert!(width > 0 && values.is_multiple_of(width), "{values} values are groups of {width}");
        assert!(
            [width, values].contains(&self.scales.len()),
            "a scale for each of {width} or {values} values"
        );
    }
}

/// Normalises and gates a row of outputs.
pub(super) struct Gated<'a> {
    pub(super) normal: Normal<'a>,
    /// As `out`.
    pub(super) gate: &'a [f32],
    /// `[values]`
    pub(super) out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Normal { scales, width, eps, gating } = self.normal;
        let groups = self.out.chunks_exact_mut(width).zip(self.gate.chunks_exact(width));
        for ((out, gate), scales) in groups.zip(scales.chunks_exact(width).cycle()) {
            if gating == Gating::SiluBefore {
                out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= silu(*gate));
            }
            let scale = per_rms(s, out, eps);
            let all = out.iter_mut().zip(gate).zip(scales);
            match gating {
                Gating::SiluBefore => all.for_each(|((out, _), by)| *out = *out * scale * by),
                Gating::SigmoidAfter => {
                    all.for_each(|((out, gate), by)| *out = *out * scale * by * sigmoid(*gate));
                }
                Gating::SiluAfter => {
                    all.for_each(|((out, gate), by)| *out = *out * scale * by * silu(*gate));
                }
            }
        }
    }
}
