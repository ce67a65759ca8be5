//! From logits to a token, and to log-probabilities.
//!
//! A draw is a function of its arguments: no generator is carried from one to the next, and no sum depends on what
//! else is in the batch. The order of steps is vLLM's: bias, forbidden tokens, penalties, temperature, min-p, top-k,
//! top-p, draw. Ties always go to the lower id.

mod cut;
mod logprobs;
mod penalty;
mod race;

pub use logprobs::{Scored, score};

use super::math::exp;
use super::simd::{Isa, Kernel, LANES, Simd};

/// How to draw. Values are finite; which ranges are allowed is checked where requests enter.
#[derive(Debug, Clone, Copy)]
pub struct Sampling<'a> {
    /// 0 = greedy.
    pub temperature: f32,
    /// Keep the fewest tokens that have this probability together; 1 = all.
    pub top_p: f32,
    /// Keep this many tokens; 0 = all.
    pub top_k: u32,
    /// Keep tokens at least this probable, relative to the most probable one; 0 = all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen (as in CTRL, Keskar et al. 2019); 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted from logits of output tokens seen.
    pub presence_penalty: f32,
    /// Subtracted for each time an output token was seen.
    pub frequency_penalty: f32,
    /// Added to logits. Tokens outside the vocabulary are ignored.
    pub logit_bias: &'a [(u32, f32)],
    /// Cannot be drawn, unless nothing else could.
    pub forbidden: &'a [u32],
    /// Tokens so far, prompt first. Needed by penalties only.
    pub history: &'a [u32],
    /// How many of `history` are prompt.
    pub prompt_len: usize,
    /// Key of the random stream.
    pub seed: u64,
    /// Which of a request's samples.
    pub sample_index: u32,
    /// Absolute position of the token to draw.
    pub position: u32,
}

/// Memory of [`draw`], kept between calls.
#[derive(Default)]
pub struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    order: Vec<u32>,
    counts: Vec<u32>,
}

/// Whether `logits` can be drawn from: no NaN, no +∞, at least one finite value.
pub fn is_usable(logits: &[f32]) -> bool {
    // A loop without an early end vectorises.
    let (mut bad, mut finite) = (false, false);
    for logit in logits {
        bad |= logit.is_nan() | (*logit == f32::INFINITY);
        finite |= logit.is_finite();
    }
    finite && !bad
}

/// Draws a token from usable `logits`.
pub fn draw(isa: Isa, logits: &[f32], sampling: &Sampling<'_>, scratch: &mut Scratch) -> u32 {
    let is_plain =
        sampling.logit_bias.is_empty() && sampling.forbidden.is_empty() && sampling.history.is_empty();
    if is_plain && sampling.temperature == 0.0 {
        return argmax(logits);
    }
    let Scratch { logits: adjusted, weights, order, counts } = scratch;
    adjusted.clear();
    adjusted.extend_from_slice(logits);
    penalty::adjust(adjusted, sampling, counts);
    let best = argmax(adjusted);
    let highest = adjusted[best as usize];
    if highest == f32::NEG_INFINITY {
        return argmax(logits); // all were forbidden
    }
    if sampling.temperature == 0.0 {
        return best;
    }
    weights.resize(adjusted.len(), 0.0);
    isa.run(Weights { logits: adjusted, highest, per_degree: 1.0 / sampling.temperature, out: weights });
    if sampling.min_p > 0.0 {
        weights.iter_mut().for_each(|weight| *weight = if *weight < sampling.min_p { 0.0 } else { *weight });
    }
    let stream = race::Stream::new(sampling);
    let kept = cut::keep(adjusted, weights, sampling.top_k, sampling.top_p, order);
    let drawn = match kept {
        cut::Kept::All => race::among_all(&stream, weights),
        cut::Kept::These(tokens) => race::among(&stream, weights, tokens),
    };
    drawn.unwrap_or(best)
}

/// The highest logit's token, the lowest id among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let highest = highest(logits);
    logits.iter().position(|logit| *logit == highest).unwrap_or(0) as u32
}

/// The highest of some values, NaN aside.
fn highest(values: &[f32]) -> f32 {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in whole {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Probabilities at a temperature, relative to the most probable token's.
struct Weights<'a> {
    logits: &'a [f32],
    highest: f32,
    per_degree: f32,
    out: &'a mut [f32],
}

impl Kernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (out, logit) in self.out.iter_mut().zip(self.logits) {
            // The difference first: a tiny temperature must not turn the highest logit into ∞. And for equal logits
            // 0 * ∞ would be NaN, where the weight is 1.
            let below = logit - self.highest;
            *out = if below == 0.0 { 1.0 } else { exp(below * self.per_degree) };
        }
    }
}

#[cfg(test)]
mod tests;
