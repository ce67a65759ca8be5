//! The CUDA backend computes what the CPU backend computes.

use skein_worker::backend::{Backend, Batch, ScoreRow};
use skein_worker::config::{CudaConfig, KvCacheDtype, Quantization};
use skein_worker::sampling::TokenLogprobs;

use crate::models::{LLAMA, QWEN2, QWEN3, Tiny, WIDE};
use crate::runs::{Sequence, eager, on_cpu, on_cuda, prompt, step};

/// Log-probabilities agree within this: bf16 keeps three digits, and the models' logits are a few units wide.
const TOLERANCE: f32 = 0.06;

/// Every prompt token's log-probability and best tokens, computed in chunks beside another sequence.
fn scores(backend: &mut dyn Backend, chunks: &[usize], others: bool) -> Vec<TokenLogprobs> {
    let tokens = prompt(1, 40);
    let mut sequence = Sequence::new(tokens.clone(), 0);
    let mut other = Sequence::new(prompt(2, 60), 1);
    let mut all = Vec::new();
    for (i, &count) in chunks.iter().enumerate() {
        let mut batch = Batch::default();
        if others {
            other.put(&mut batch, 1 + i % 3 * 4, None);
        }
        let first = batch.tokens.len() as u32;
        let start = sequence.computed;
        sequence.put(&mut batch, count, None);
        for position in start..(start + count).min(tokens.len() - 1) {
            let row = first + (position - start) as u32;
            batch.scores.push(ScoreRow { row, target: tokens[position + 1], top: 5 });
        }
        all.extend(step(backend, batch).scores);
    }
    all
}

/// Largest difference of log-probabilities, and that the best tokens are the same where they stand apart.
fn compare(name: &str, got: &[TokenLogprobs], expected: &[TokenLogprobs], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{name}");
    let mut largest = 0f32;
    for (position, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.token, expected.token, "{name}");
        let difference = (got.logprob - expected.logprob).abs();
        assert!(difference <= tolerance, "{name}: position {position}: {got:?} is not {expected:?}");
        largest = largest.max(difference);
        if expected.top[0].1 - expected.top[1].1 > 2.0 * tolerance {
            assert_eq!(got.top[0].0, expected.top[0].0, "{name}: position {position}: the best token");
        }
        assert_eq!(got.top.len(), 5);
    }
    println!("{name}: log-probabilities differ by at most {largest:.4}");
}

fn check(name: &str, tiny: Tiny) {
    let dir = tiny.make(7);
    let expected = scores(&mut on_cpu(dir.path()), &[39], false);
    let cuda = &mut on_cuda(dir.path(), eager());
    compare(&format!("{name} at once"), &scores(cuda, &[39], false), &expected, TOLERANCE);
    compare(&format!("{name} in chunks"), &scores(cuda, &[7, 1, 20, 1, 10], true), &expected, TOLERANCE);
}

#[test]
fn llama_in_bfloat16() {
    if skein_cuda_emulation::load() {
        check("llama", LLAMA);
    }
}

#[test]
fn qwen2_in_half_precision_with_biases_and_a_tied_head() {
    if skein_cuda_emulation::load() {
        check("qwen2", QWEN2);
    }
}

#[test]
fn single_precision_is_converted() {
    if skein_cuda_emulation::load() {
        check("f32", WIDE);
    }
}

#[test]
fn qwen3_with_normalised_heads() {
    if skein_cuda_emulation::load() {
        check("qwen3", QWEN3);
    }
}

#[test]
fn fp8_weights_and_fp8_cache_stay_near() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(7);
    let expected = scores(&mut on_cpu(dir.path()), &[39], false);
    let weights = CudaConfig { quantization: Some(Quantization::Fp8), ..eager() };
    let cache = CudaConfig { kv_cache_dtype: KvCacheDtype::Fp8, ..eager() };
    // Three bits of mantissa: 2^-4 at worst and 3% on average of each product, which two layers of 128 inputs average out.
    for (name, config) in [("fp8 weights", weights), ("fp8 cache", cache)] {
        let got = scores(&mut on_cuda(dir.path(), config), &[20, 19], true);
        let mean = got.iter().zip(&expected).map(|(a, b)| (a.logprob - b.logprob).abs()).sum::<f32>() / 39.0;
        println!("{name}: log-probabilities differ by {mean:.3} on average");
        assert!(mean < 0.15 && mean > 0.0, "{name}: {mean}");
    }
}
