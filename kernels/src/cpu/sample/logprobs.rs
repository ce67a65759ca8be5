//! Log-probabilities of the raw model distribution.

use super::super::math::exp;
use super::super::simd::{Isa, Kernel, LANES, Simd};
use super::Scratch;
use super::peaks::Peaks;

/// A token's score under the raw distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Natural-log probability of the token.
    pub logprob: f32,
    /// Rank of the token, 1 = most probable.
    pub rank: u32,
    /// The best tokens with their log-probabilities, best first; the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// Scores `token` under usable `logits` and lists the `top` best tokens.
///
/// # Panics
/// If `token` is outside the vocabulary.
pub fn score(isa: Isa, logits: &[f32], token: u32, top: usize, scratch: &mut Scratch) -> Scored {
    let Scratch { peaks, order, .. } = scratch;
    let highest = peaks.survey(isa, logits);
    let log_sum = libm::log(isa.run(SumExp { logits, highest }));
    let logprob = |logit: f32| (f64::from(logit) - f64::from(highest) - log_sum) as f32;
    let own = logits[token as usize];
    let ahead = isa.run(CountAhead { logits, own, token });
    best(logits, peaks, top, order);
    let top = order.iter().map(|token| (*token, logprob(logits[*token as usize]))).collect();
    Scored { logprob: logprob(own), rank: ahead + 1, top }
}

/// Sets `tokens` to the `count` best ones, best first.
fn best(logits: &[f32], peaks: &mut Peaks, count: usize, tokens: &mut Vec<u32>) {
    tokens.clear();
    if count == 0 {
        return;
    }
    let before = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let floor = peaks.floor(count);
    peaks.reaching(logits, floor, tokens);
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, before);
        tokens.truncate(count);
    }
    tokens.sort_unstable_by(before);
}

/// Counts the tokens that rank before `token`, whose logit is `own`.
struct CountAhead<'a> {
    logits: &'a [f32],
    own: f32,
    token: u32,
}

impl Kernel for CountAhead<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> u32 {
        let (before, after) = self.logits.split_at(self.token as usize);
        let mut ahead = 0;
        for logit in before {
            ahead += u32::from(*logit >= self.own);
        }
        for logit in after {
            ahead += u32::from(*logit > self.own);
        }
        ahead
    }
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
        // f32 lanes over a few thousand values and f64 over their sums: exact enough for any vocabulary.
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
