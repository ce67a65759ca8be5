//! The draw itself: every token starts with an exponentially distributed time, divided by its weight; the first wins.
//! That is the Gumbel-argmax draw without its logarithms: a token wins with the probability of its weight.

use super::super::philox::philox4x32_10;
use super::Sampling;

/// The random words of one draw: word `token % 4` of Philox at counter (token / 4, position, sample index, 0).
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
}

/// The earliest token so far.
struct Leader {
    time: f64,
    token: Option<u32>,
}

impl Leader {
    const NONE: Self = Self { time: f64::INFINITY, token: None };

    #[inline(always)]
    fn challenge(&mut self, token: u32, word: u32, weight: f32) {
        let (uniform, weight) = ((f64::from(word) + 0.5) / 4_294_967_296.0, f64::from(weight));
        // -ln(1 - u) >= u: whoever cannot win with u cannot win, and nearly all end here.
        if uniform > self.time * weight {
            return;
        }
        let time = -libm::log1p(-uniform) / weight;
        if weight > 0.0 && (time, token) < (self.time, self.token.unwrap_or(u32::MAX)) {
            *self = Self { time, token: Some(token) };
        }
    }
}

/// The winner among all tokens; none if no token has a weight.
pub(super) fn among_all(stream: &Stream, weights: &[f32]) -> Option<u32> {
    let mut leader = Leader::NONE;
    for (four, weights) in weights.chunks(4).enumerate() {
        let words = stream.words(four as u32);
        for (i, weight) in weights.iter().enumerate() {
            leader.challenge(4 * four as u32 + i as u32, words[i], *weight);
        }
    }
    leader.token
}

/// The winner among `tokens`.
pub(super) fn among(stream: &Stream, weights: &[f32], tokens: &[u32]) -> Option<u32> {
    let mut leader = Leader::NONE;
    for token in tokens {
        let word = stream.words(token / 4)[*token as usize % 4];
        leader.challenge(*token, word, weights[*token as usize]);
    }
    leader.token
}
