//! Agreement of the CUDA backend with Hugging Face transformers: the files under tests/golden, made in
//! float32.

use std::path::Path;

use skein_worker::backend::cuda::{NotUsable, check_model};
use skein_worker::model::config::ModelConfig;

use crate::golden::Golden;
use crate::runs::{eager, on_cuda};
use crate::scores::{TOLERANCE, scores_of};

/// Limit for a single log-probability; the mean must be within [`TOLERANCE`]. Unlikely tokens differ more.
const MOST: f32 = 4.0 * TOLERANCE;

/// Compares log-probabilities of a prompt and of 64 greedy tokens, computed in chunks, with golden logits.
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

/// Every model that the kernels can run agrees; the others are refused with the name of the unsupported part.
#[test]
fn every_model_agrees_or_is_refused() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
    let mut refused = Vec::new();
    for entry in std::fs::read_dir(&models).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let config = ModelConfig::from_dir(&models.join(&name)).unwrap();
        match check_model(&config, 16) {
            Ok(()) => check(&name),
            Err(NotUsable::Part { family, part }) => refused.push(format!("{family}: {part}")),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    refused.sort_unstable();
    refused.dedup();
    let expected = [
        "deepseek_v2: a mixture of experts",
        "deepseek_v3: a mixture of experts",
        "glm4_moe: a mixture of experts",
        "gpt_oss: a mixture of experts",
        "granitemoe: a mixture of experts",
        "llama4_text: a mixture of experts",
        "mixtral: a mixture of experts",
        "olmoe: a mixture of experts",
        "qwen2_moe: a mixture of experts",
        "qwen3_moe: a mixture of experts",
    ];
    assert_eq!(refused, expected);
}
