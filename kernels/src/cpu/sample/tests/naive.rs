//! Draws and scores by sorting everything: the reference for the fast implementations, bit by bit.

use super::super::super::math::exp;
use super::super::super::philox::philox4x32_10;
use super::super::{Sampling, penalty};

pub(super) fn argmax(logits: &[f32]) -> u32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == highest).unwrap_or(0) as u32
}

pub(super) fn draw(logits: &[f32], sampling: &Sampling<'_>) -> u32 {
    let mut adjusted = logits.to_vec();
    penalty::adjust(&mut adjusted, sampling, &mut Vec::new());
    let best = argmax(&adjusted);
    let highest = adjusted[best as usize];
    if highest == f32::NEG_INFINITY {
        return argmax(logits);
    }
    if sampling.controls.temperature == 0.0 {
        return best;
    }
    let inverse_temperature = 1.0 / sampling.controls.temperature;
    let weight = |logit: &f32| {
        let below = logit - highest;
        let weight = if below == 0.0 { 1.0 } else { exp(below * inverse_temperature) };
        if weight < sampling.controls.min_p { 0.0 } else { weight }
    };
    let weights: Vec<f32> = adjusted.iter().map(weight).collect();
    let kept = keep(&adjusted, &weights, sampling.controls.top_k, sampling.controls.top_p);
    race(sampling, &weights, &kept).unwrap_or(best)
}

/// The tokens that top-k and top-p keep, ascending.
pub(super) fn keep(logits: &[f32], weights: &[f32], top_k: u32, top_p: f32) -> Vec<u32> {
    let mut order = best(logits);
    order.retain(|token| weights[*token as usize] > 0.0);
    if top_k > 0 {
        order.truncate(top_k as usize);
    }
    if top_p < 1.0 {
        let mass = |token: &u32| (weights[*token as usize] * 17_592_186_044_416.0).round_ties_even() as u64;
        let goal = order.iter().map(mass).sum::<u64>() as f64 * f64::from(top_p);
        let mut sum = 0;
        let last = order.iter().position(|token| {
            sum += mass(token);
            sum as f64 >= goal
        });
        order.truncate(last.map_or(order.len(), |last| last + 1));
    }
    order.sort_unstable();
    order
}

/// All tokens, best first.
pub(super) fn best(logits: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_unstable_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    order
}

fn race(sampling: &Sampling<'_>, weights: &[f32], tokens: &[u32]) -> Option<u32> {
    let key = [sampling.seed as u32, (sampling.seed >> 32) as u32];
    let mut winner = None;
    for token in tokens {
        let counter = [token / 4, sampling.position, sampling.sample_index, 0];
        let word = philox4x32_10(counter, key)[*token as usize % 4];
        let uniform = (f64::from(word) + 0.5) / 4_294_967_296.0;
        let time = -libm::log1p(-uniform) / f64::from(weights[*token as usize]);
        if weights[*token as usize] > 0.0 && winner.is_none_or(|(first, _)| time < first) {
            winner = Some((time, *token));
        }
    }
    winner.map(|(_, token)| token)
}
