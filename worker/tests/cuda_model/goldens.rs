//! Agreement of the CUDA backend with Hugging Face transformers: the files under tests/golden, made in
//! float32.

use std::path::Path;

use crate::golden::Golden;
use crate::runs::{eager, on_cuda};
use crate::scores::{TOLERANCE, scores_of};

/// Limit for a single log-probability; the mean must be within [`TOLERANCE`]. Unlikely tokens differ more.
const MOST: f32 = 4.0 * TOLERANCE;

/// Log-probabilities of a prompt and of 64 greedy tokens, computed in chunks, compared with the golden
/// logits.
fn check(name: &str) {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models").join(name);
    let golden = Golden::read(&dir);
    let tokens = [&golden.prompt[..], &golden.greedy].concat();
    let got = scores_of(&mut on_cuda(&dir, eager()), &tokens, &[40, 1, 33, 30], false);
    let last = golden.prompt.len() - 1;
    let in_prompt =
        golden.prompt_positions.iter().map(|position| *position as usize).zip(&golden.prompt_logits);
    let greedy = golden.greedy_steps.iter().map(|step| last + *step as usize).zip(&golden.greedy_logits);
    let (mut largest, mut sum, mut count) = (0f32, 0.0, 0.0);
    for (position, logits) in in_prompt.chain(greedy) {
        let expected = log_softmax(logits, tokens[position + 1] as usize);
        let difference = (got[position].logprob - expected).abs();
        assert!(difference <= MOST, "{name}, position {position}: {:?} is not {expected}", got[position]);
        largest = largest.max(difference);
        (sum, count) = (sum + difference, count + 1.0);
    }
    let mean = sum / count;
    println!("{name}: log-probabilities differ by {mean:.4} on average, by at most {largest:.4}");
    assert!(mean <= TOLERANCE, "{name}: {mean}");
}

fn log_softmax(logits: &[f32], token: usize) -> f32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
    logits[token] - highest - sum.ln()
}

#[test]
fn qwen3_with_normalised_heads() {
    check("qwen3");
}

#[test]
fn mistral_with_a_window() {
    check("mistral-window");
}

#[test]
fn gemma2_in_bfloat16_and_half_precision() {
    check("gemma2");
    check("gemma2-v5");
}
