//! The gates of each value head.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::disjoint::DisjointMut;
use super::super::simd::{Kernel, LANES, Simd};
use super::layer::Layer;
use super::plan::Stretch;
use super::rows::RawRows;
use super::rule::{Gates, Logits, Rule};

/// Gates of a run of rows, into `out` `[value_heads, rows of the pass]`.
pub(super) struct GateRows<'a, 'o, R> {
    pub(super) layer: &'a Layer<'a>,
    pub(super) raw: &'a RawRows<'a>,
    pub(super) stretch: &'a Stretch,
    pub(super) rows: Range<usize>,
    /// Rows of the pass.
    pub(super) pass_rows: usize,
    /// No other task takes these rows.
    pub(super) out: &'a DisjointMut<'o, Gates>,
    pub(super) rule: PhantomData<R>,
}

impl<R: Rule> Kernel for GateRows<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Layer { shape, decay_rate, decay_bias, limits, .. } = *self.layer;
        let heads = shape.value_heads;
        for row in self.rows {
            // Kinds with one logit for each head use one of the two.
            let logits = self.raw.logits(self.stretch, row);
            let (b, a) = (&logits[..heads], &logits[logits.len() - heads..]);
            for first in (0..heads).step_by(LANES) {
                let count = LANES.min(heads - first);
                let part = |values: &[f32]| {
                    let mut lanes = [0.0; LANES];
                    lanes[..count].copy_from_slice(&values[first..first + count]);
                    lanes
                };
                let (a, b, rates, biases) = (part(a), part(b), part(decay_rate), part(decay_bias));
                let mut gates = [Gates::default(); LANES];
                // Head by head, so any vector width gives the same bits; the compiler vectorises it.
                for i in 0..LANES {
                    let (decay_rate, decay_bias) = (rates[i], biases[i]);
                    gates[i] = R::gates(Logits { b: b[i], a: a[i], decay_rate, decay_bias, limits });
                }
                for (i, gates) in gates[..count].iter().enumerate() {
                    let at = (first + i) * self.pass_rows + self.stretch.first + row;
                    // SAFETY: each row of the pass is in one task.
                    unsafe { self.out.part(at, 1)[0] = *gates };
                }
            }
        }
    }
}
