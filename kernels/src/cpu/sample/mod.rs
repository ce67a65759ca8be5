//! Sampling: from logits to a token and to log-probabilities.
//!
//! A draw is a pure function of its arguments: no generator has state, and no sum depends on the rest of the
//! batch. The order of operations is vLLM's: allowed tokens, bias, forbidden tokens, penalties, temperature,
//! min-p, top-k, top-p, draw. Ties always go to the lower id.

mod cut;
mod flat;
mod logprobs;
mod parameters;
mod peaks;
mod penalty;
mod race;
mod weigh;

pub use logprobs::{Scored, score};
pub use parameters::{Controls, Sampling};

use super::simd::{Isa, Kernel, Simd};
use cut::{Kept, LogitView};
use peaks::Peaks;
use weigh::{Mass, WeighAll, Weighting};

/// Buffers of [`draw`] and [`score`], reused between calls.
#[derive(Default)]
pub struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    order: Vec<u32>,
    counts: Vec<u32>,
    peaks: Peaks,
    kept: Kept,
    buckets: flat::Buckets,
}

impl Scratch {
    /// Reserves capacity for logits of `vocab` tokens. Capacity that is never touched takes no memory.
    pub fn for_vocab(vocab: usize) -> Self {
        Self {
            logits: Vec::with_capacity(vocab),
            weights: Vec::with_capacity(vocab),
            order: Vec::with_capacity(vocab),
            counts: Vec::with_capacity(vocab),
            peaks: Peaks::default(),
            kept: Kept { tokens: Vec::with_capacity(vocab), weights: Vec::with_capacity(vocab) },
            buckets: flat::Buckets::default(),
        }
    }
}

/// Whether `logits` can be drawn from: no NaN, no +∞, at least one finite value.
pub fn is_usable(isa: Isa, logits: &[f32]) -> bool {
    isa.run(Usable(logits))
}

struct Usable<'a>(&'a [f32]);

impl Kernel for Usable<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> bool {
        // Without an early exit the loop vectorises.
        let (mut bad, mut finite) = (false, false);
        for logit in self.0 {
            bad |= logit.is_nan() | (*logit == f32::INFINITY);
            finite |= logit.is_finite();
        }
        finite && !bad
    }
}

/// Draws a token from usable `logits`.
pub fn draw(isa: Isa, logits: &[f32], sampling: &Sampling<'_>, scratch: &mut Scratch) -> u32 {
    let Scratch { logits: adjusted, weights, counts, peaks, kept, buckets, .. } = scratch;
    let raw = logits;
    let logits = if sampling.is_plain() {
        raw
    } else {
        penalty::copy_allowed(raw, sampling.allowed, adjusted);
        penalty::adjust(adjusted, sampling, counts);
        &**adjusted
    };
    let highest = peaks.survey(isa, logits);
    if highest == f32::NEG_INFINITY {
        // All allowed tokens are forbidden, so ignore the bans.
        penalty::copy_allowed(raw, sampling.allowed, adjusted);
        return argmax(isa, adjusted, peaks);
    }
    let best = peaks.first_of(logits, highest);
    let Controls { temperature, top_p, top_k, min_p, .. } = sampling.controls;
    if temperature == 0.0 {
        return best;
    }
    let weighting = Weighting { highest, inverse_temperature: 1.0 / temperature, min_weight: min_p };
    let view = LogitView { isa, logits, weighting };
    let stream = race::Stream::new(sampling);
    let top_k = top_k as usize;
    let drawn = if top_k > 0 && top_k < logits.len() {
        kept.take_best(view, peaks, top_k);
        if top_p < 1.0 {
            kept.cut_mass(top_p);
        }
        race::among(&stream, &kept.tokens, &kept.weights)
    } else {
        weights.resize(logits.len(), 0.0);
        isa.run(WeighAll { logits, weighting, out: weights });
        let is_cut = top_p < 1.0 && keep_mass(view, weights, peaks, top_p, buckets, kept);
        if is_cut {
            race::among(&stream, &kept.tokens, &kept.weights)
        } else {
            race::among_all(isa, &stream, weights)
        }
    };
    drawn.unwrap_or(best)
}

/// Applies top-p to all tokens, whose weights are `weights`. Returns true if the result is in `kept`, false
/// if it is in `weights`, where all other tokens are zero now.
fn keep_mass(
    view: LogitView<'_>,
    weights: &mut [f32],
    peaks: &mut Peaks,
    top_p: f32,
    buckets: &mut flat::Buckets,
    kept: &mut Kept,
) -> bool {
    let goal = cut::goal(view.isa.run(Mass(weights)), top_p);
    let is_small = kept.take_mass(view, peaks, goal);
    if !is_small {
        flat::cut(view, weights, goal, buckets, kept);
    }
    is_small
}

/// The token with the highest logit, the lowest id among equals.
fn argmax(isa: Isa, logits: &[f32], peaks: &mut Peaks) -> u32 {
    let highest = peaks.survey(isa, logits);
    peaks.first_of(logits, highest)
}

#[cfg(test)]
mod tests;
