//! From logits to a token, and to log-probabilities.
//!
//! A draw is a function of its arguments: no generator is carried from one to the next, and no sum depends on what
//! else is in the batch. The order of steps is vLLM's: bias, forbidden tokens, penalties, temperature, min-p, top-k,
//! top-p, draw. Ties always go to the lower id.

mod cut;
mod flat;
mod logprobs;
mod peaks;
mod penalty;
mod race;
mod weigh;

pub use logprobs::{Scored, score};

use super::simd::{Isa, Kernel, Simd};
use cut::{Kept, Looked};
use peaks::Peaks;
use weigh::{Heat, Mass, WeighAll};

/// What a request sets, as the device reads it too.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Controls {
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
}

impl Controls {
    /// The best token, no penalties.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
    };
}

/// How to draw. Values are finite; which ranges are allowed is checked where requests enter.
#[derive(Debug, Clone, Copy)]
pub struct Sampling<'a> {
    /// Temperature, cuts and penalties.
    pub controls: Controls,
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

/// Memory of [`draw`] and [`score`], kept between calls.
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
    /// One that need not grow for logits of `vocab` tokens. Memory that is never used costs none.
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
        // A loop without an early end vectorises.
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
    let is_plain =
        sampling.logit_bias.is_empty() && sampling.forbidden.is_empty() && sampling.history.is_empty();
    let raw = logits;
    let logits = if is_plain {
        raw
    } else {
        adjusted.clear();
        adjusted.extend_from_slice(raw);
        penalty::adjust(adjusted, sampling, counts);
        &**adjusted
    };
    let highest = peaks.survey(isa, logits);
    if highest == f32::NEG_INFINITY {
        return argmax(isa, raw, peaks); // all were forbidden
    }
    let best = peaks.first_of(logits, highest);
    let Controls { temperature, top_p, top_k, min_p, .. } = sampling.controls;
    if temperature == 0.0 {
        return best;
    }
    let heat = Heat { highest, per_degree: 1.0 / temperature, least: min_p };
    let looked = Looked { isa, logits, heat };
    let stream = race::Stream::new(sampling);
    let top_k = top_k as usize;
    let drawn = if top_k > 0 && top_k < logits.len() {
        kept.take_best(looked, peaks, top_k);
        if top_p < 1.0 {
            kept.cut_mass(top_p);
        }
        race::among(&stream, &kept.tokens, &kept.weights)
    } else {
        weights.resize(logits.len(), 0.0);
        isa.run(WeighAll { logits, heat, out: weights });
        let is_cut = top_p < 1.0 && keep_mass(looked, weights, peaks, top_p, buckets, kept);
        match is_cut {
            true => race::among(&stream, &kept.tokens, &kept.weights),
            false => race::among_all(isa, &stream, weights),
        }
    };
    drawn.unwrap_or(best)
}

/// Applies top-p to all tokens, whose `weights` these are. True: what stays is in `kept`; false: the weights of all others
/// are zero now.
fn keep_mass(
    looked: Looked<'_>,
    weights: &mut [f32],
    peaks: &mut Peaks,
    top_p: f32,
    buckets: &mut flat::Buckets,
    kept: &mut Kept,
) -> bool {
    let goal = cut::goal(looked.isa.run(Mass(weights)), top_p);
    let is_small = kept.take_mass(looked, peaks, goal);
    if !is_small {
        flat::cut(looked, weights, goal, buckets, kept);
    }
    is_small
}

/// The highest logit's token, the lowest id among equals.
fn argmax(isa: Isa, logits: &[f32], peaks: &mut Peaks) -> u32 {
    let highest = peaks.survey(isa, logits);
    peaks.first_of(logits, highest)
}

#[cfg(test)]
mod tests;
