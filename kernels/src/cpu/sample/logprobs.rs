//! Log-probabilities of the raw model distribution.

use super::super::math::exp;
use super::super::simd::{Isa, Kernel, LANES, Simd};
use super::highest;

/// What a distribution says of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Its natural-log probability.
    pub logprob: f32,
    /// Its rank, 1 = most probable.
    pub rank: u32,
    /// The best tokens, best first, the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// Scores `token` under usable `logits`, and lists the `top` best.
///
/// # Panics
/// If `token` is outside the vocabulary.
pub fn score(isa: Isa, logits: &[f32], token: u32, top: usize) -> Scored {
    let highest = highest(logits);
    let log_sum = libm::log(isa.run(SumExp { logits, highest }));
    let logprob = |logit: f32| (f64::from(logit) - f64::from(highest) - log_sum) as f32;
    let own = logits[token as usize];
    let (before, after) = logits.split_at(token as usize);
    let ahead = before.iter().filter(|logit| **logit >= own).count()
        + after.iter().filter(|logit| **logit > own).count();
    let top = best(logits, top).into_iter().map(|token| (token, logprob(logits[token as usize]))).collect();
    Scored { logprob: logprob(own), rank: ahead as u32 + 1, top }
}

/// The `count` best tokens, best first.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    let count = count.min(logits.len());
    if count == 0 {
        return Vec::new();
    }
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    let before = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    tokens.select_nth_unstable_by(count - 1, before);
    tokens.truncate(count);
    tokens.sort_unstable_by(before);
    tokens
}

/// Sum of `exp(logit - highest)`.
struct SumExp<'a> {
    logits: &'a [f32],
    highest: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        // f32 lanes over a few thousand values, f64 over those sums: exact enough for any vocabulary.
        let mut total = 0.0;
        for part in self.logits.chunks(256 * LANES) {
            let mut lanes = [0.0f32; LANES];
            let (whole, rest) = part.as_chunks::<LANES>();
            for chunk in whole {
                for (lane, logit) in lanes.iter_mut().zip(chunk) {
                    *lane += exp(logit - self.highest);
                }
            }
            for (lane, logit) in lanes.iter_mut().zip(rest) {
                *lane += exp(logit - self.highest);
            }
            for lane in lanes {
                total += f64::from(lane);
            }
        }
        total
    }
}
