//! The draw: an exponential race. Every token gets an exponentially distributed time divided by its weight,
//! and the earliest wins. A token wins with the probability of its weight, as in a Gumbel-argmax draw, but
//! without its logarithms.

use super::super::philox::{philox4x32_10, philox4x32_10_many};
use super::super::simd::{Isa, Kernel, LANES, Simd};
use super::parameters::Sampling;

/// Random words of one draw: word `token % 4` of Philox at counter (token / 4, position, sample index, 0).
pub(super) struct Stream {
    key: [u32; 2],
    position: u32,
    sample_index: u32,
}

impl Stream {
    pub(super) fn new(sampling: &Sampling<'_>) -> Self {
        let Sampling { seed, position, sample_index, .. } = *sampling;
        Self { key: [seed as u32, (seed >> 32) as u32], position, sample_index }
    }

    #[inline(always)]
    fn words(&self, four: u32) -> [u32; 4] {
        philox4x32_10([four, self.position, self.sample_index, 0], self.key)
    }

    /// The words of sixteen counters: `[word][counter - first]`.
    #[inline(always)]
    fn words_from(&self, first: u32) -> [[u32; AT_ONCE]; 4] {
        let mut counters =
            [[0; AT_ONCE], [self.position; AT_ONCE], [self.sample_index; AT_ONCE], [0; AT_ONCE]];
        for (i, counter) in counters[0].iter_mut().enumerate() {
            *counter = first + i as u32;
        }
        philox4x32_10_many(counters, self.key)
    }
}

/// Earliest token so far.
struct Leader {
    time: f64,
    token: Option<u32>,
}

impl Leader {
    const NONE: Self = Self { time: f64::INFINITY, token: None };

    #[inline(always)]
    fn challenge(&mut self, token: u32, word: u32, weight: f32) {
        let (uniform, weight) = ((f64::from(word) + 0.5) / 4_294_967_296.0, f64::from(weight));
        // -ln(1 - u) >= u: a token that cannot win with time u cannot win at all. Nearly all tokens stop
        // here.
        if uniform > self.time * weight {
            return;
        }
        let time = -libm::log1p(-uniform) / weight;
        if weight > 0.0 && (time, token) < (self.time, self.token.unwrap_or(u32::MAX)) {
            *self = Self { time, token: Some(token) };
        }
    }
}

/// Philox counters computed at once, four tokens each.
const AT_ONCE: usize = LANES;

/// The winner among all tokens; `None` if no token has a weight.
pub(super) fn among_all(isa: Isa, stream: &Stream, weights: &[f32]) -> Option<u32> {
    isa.run(Race { stream, weights })
}

struct Race<'a> {
    stream: &'a Stream,
    weights: &'a [f32],
}

impl Kernel for Race<'_> {
    type Output = Option<u32>;

    /// Tokens that may beat the leader of the previous chunks are compared one by one, in order; they are
    /// few.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Option<u32> {
        let mut leader = Leader::NONE;
        let (whole, rest) = self.weights.as_chunks::<{ 4 * AT_ONCE }>();
        for (chunk, weights) in whole.iter().enumerate() {
            let words = self.stream.words_from((chunk * AT_ONCE) as u32);
            // Rounding errors of both sides are far below the factor that widens the bound. Without a leader
            // it is ∞ or NaN.
            let bound = leader.time as f32 * 4_294_967_296.0 * 1.000_001;
            let mut near = [0u32; 4 * AT_ONCE];
            let mut any = 0;
            for i in 0..4 * AT_ONCE {
                let out = words[i % 4][i / 4] as f32 > bound * weights[i] + 1.0;
                near[i] = u32::from(!out);
                any |= near[i];
            }
            if any != 0 {
                for i in 0..4 * AT_ONCE {
                    if near[i] != 0 {
                        leader.challenge((4 * AT_ONCE * chunk + i) as u32, words[i % 4][i / 4], weights[i]);
                    }
                }
            }
        }
        let first = self.weights.len() - rest.len();
        for (i, weight) in rest.iter().enumerate() {
            let token = (first + i) as u32;
            leader.challenge(token, self.stream.words(token / 4)[i % 4], *weight);
        }
        leader.token
    }
}

/// The winner among `tokens`, whose weights are `weights`; `None` if none has a weight.
pub(super) fn among(stream: &Stream, tokens: &[u32], weights: &[f32]) -> Option<u32> {
    let mut leader = Leader::NONE;
    for (token, weight) in tokens.iter().zip(weights) {
        let word = stream.words(token / 4)[*token as usize % 4];
        leader.challenge(*token, word, *weight);
    }
    leader.token
}
