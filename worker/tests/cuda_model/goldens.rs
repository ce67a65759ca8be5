//! Agreement of the CUDA backend with Hugging Face transformers: the files under tests/golden, made in
//! float32.

use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use skein_kernels::cpu::experts::Groups;
use skein_model::config::ModelConfig;
use skein_model::spec::{ExpertsSpec, LatentSpec};
use skein_worker::backend::cuda::check_model;

use crate::golden::Golden;
use crate::runs::{eager, on_cuda};
use crate::scores::{TOLERANCE, scores_of};

/// Limit for a single log-probability; the mean must be within [`TOLERANCE`]. Unlikely tokens differ more.
pub const MOST: f32 = 4.0 * TOLERANCE;

/// Positions of a model with experts that may differ more: of nearly equal experts, half precision may choose
/// another one than float32.
const OTHER_EXPERTS: usize = 2;
/// Families that are refused, because a part of them has no kernel.
const WITHOUT_KERNELS: [&str; 12] = [
    "deepseek_v32",
    "ernie4_5_moe",
    "gemma4_text",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_next",
    "lfm2",
    "lfm2_moe",
    "granitemoehybrid",
    "nemotron_h",
    "kimi_linear",
    "ministral3",
];

/// A copy of the model in `dir` in half precision. Of nearly equal experts, bfloat16 often chooses another
/// one than float32 does.
fn in_half_precision(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (from, to) = (dir.join(&name), copy.path().join(&name));
        if name.ends_with(".json") {
            std::fs::copy(from, to).unwrap();
        } else if name.starts_with("model") {
            std::fs::write(to, halved(&std::fs::read(from).unwrap())).unwrap();
        }
    }
    copy
}

/// A safetensors file with all numbers rounded to half precision; codes stay.
fn halved(file: &[u8]) -> Vec<u8> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let halve = |tensor: &TensorView<'_>| -> Vec<u8> {
        if tensor.dtype() == Dtype::U8 {
            return tensor.data().to_vec();
        }
        let (pairs, fours) = (tensor.data().as_chunks().0, tensor.data().as_chunks().0);
        let wide: Vec<f32> = match tensor.dtype() {
            Dtype::BF16 => pairs.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
            Dtype::F16 => pairs.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            _ => fours.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        };
        wide.into_iter().flat_map(|value| f16::from_f32(value).to_le_bytes()).collect()
    };
    let dtype = |tensor: &TensorView<'_>| if tensor.dtype() == Dtype::U8 { Dtype::U8 } else { Dtype::F16 };
    let values: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| (name.to_owned(), dtype(&tensor), tensor.shape().to_vec(), halve(&tensor)))
        .collect();
    let views = values.iter().map(|(name, dtype, shape, data)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    serialize(views, None).unwrap()
}

/// Compares log-probabilities of a prompt and of 64 greedy tokens, computed in chunks, with golden logits.
/// Returns how they differ, if they do.
fn check(name: &str, has_experts: bool) -> Option<String> {
    if !skein_cuda_emulation::load() {
        return None;
    }
    let dir = skein_golden::path(format!("models/{name}"));
    let golden = Golden::read(&dir);
    let tokens = [&golden.prompt[..], &golden.greedy].concat();
    let copy = has_experts.then(|| in_half_precision(&dir));
    let model = copy.as_ref().map_or(&*dir, |copy| copy.path());
    let got = scores_of(&mut on_cuda(model, eager()), &tokens, &[40, 1, 33, 30], false);
    let last = golden.prompt.len() - 1;
    let in_prompt =
        golden.prompt_positions.iter().map(|position| *position as usize).zip(&golden.prompt_logits);
    let greedy = golden.greedy_steps.iter().map(|step| last + *step as usize).zip(&golden.greedy_logits);
    let mut differences = Vec::new();
    for (position, logits) in in_prompt.chain(greedy) {
        let expected = log_softmax(logits, tokens[position + 1] as usize);
        let difference = (got[position].logprob - expected).abs();
        if difference > MOST {
            println!("{name}, position {position}: {:?} is not {expected}", got[position]);
        }
        differences.push(difference);
    }
    differences.sort_unstable_by(f32::total_cmp);
    let others = if has_experts { OTHER_EXPERTS } else { 0 };
    let more = differences.iter().rev().take(others).filter(|difference| **difference > MOST).count();
    differences.truncate(differences.len() - more);
    let (largest, sum) = (differences[differences.len() - 1], differences.iter().sum::<f32>());
    let mean = sum / differences.len() as f32;
    let told = format!(
        "{name}: log-probabilities differ by {mean:.4} on average, by at most {largest:.4}, more at {more}"
    );
    println!("{told}");
    (largest > MOST || mean > TOLERANCE).then_some(told)
}

pub fn log_softmax(logits: &[f32], token: usize) -> f32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
    logits[token] - highest - sum.ln()
}

#[test]
fn every_model_agrees() {
    let mut different = Vec::new();
    for name in skein_golden::names("models") {
        let config = ModelConfig::from_dir(&skein_golden::path(format!("models/{name}"))).unwrap();
        if let Some(family) = WITHOUT_KERNELS.iter().find(|family| **family == config.model_type) {
            let error = check_model(&config, 16).unwrap_err().to_string();
            assert!(error.contains(family) && error.contains("--device cpu"), "{name}: {error}");
            continue;
        }
        check_model(&config, 16).unwrap_or_else(|error| panic!("{name}: {error}"));
        different.extend(check(&name, config.spec.experts().0 > 0));
    }
    assert!(different.is_empty(), "{different:#?}");
}

#[test]
fn latents_without_a_kernel_are_refused_by_name() {
    let dir = skein_golden::path("models/deepseek-v2");
    let check = |change: fn(&mut LatentSpec), size: &str| {
        let mut config = ModelConfig::from_dir(&dir).unwrap();
        config.spec.attention.latent.iter_mut().for_each(change);
        let error = check_model(&config, 16).unwrap_err().to_string();
        assert_eq!(error, format!("the CUDA kernels cannot run this model: {size}"));
    };
    check(|latent| latent.rank = 520, "kv_lora_rank is 520; allowed: multiples of 8 up to 512");
    check(|latent| latent.rank = 36, "kv_lora_rank is 36; allowed: multiples of 8 up to 512");
    check(|latent| latent.rotated = 72, "qk_rope_head_dim is 72; allowed: multiples of 8 up to 64");
    check(|latent| latent.plain = 20, "qk_nope_head_dim is 20; allowed: multiples of 8");
    check(|latent| latent.query_rank = Some(50), "q_lora_rank is 50; allowed: multiples of 8");
    let outputs = "v_head_dim times num_attention_heads is 84; allowed: multiples of 8";
    check(|latent| latent.value_dim = 21, outputs);
}

#[test]
fn mixtures_without_a_kernel_are_refused_by_name() {
    const GROUPS: Groups = Groups { count: 33, kept: 1, by_best: 1 };
    let dir = skein_golden::path("models/mixtral");
    let check = |change: fn(&mut ExpertsSpec), part: &str| {
        let mut config = ModelConfig::from_dir(&dir).unwrap();
        config
            .spec
            .layers
            .iter_mut()
            .filter_map(|layer| layer.feed_forward.experts.as_mut())
            .for_each(change);
        let error = check_model(&config, 16).unwrap_err().to_string();
        let expected =
            format!("the CUDA kernels cannot run this model: mixtral has {part}; serve it with --device cpu");
        assert_eq!(error, expected);
    };
    let most = "more than 512 experts in a layer, or more than 32 of them for a token";
    check(|experts| experts.count = 513, most);
    check(|experts| experts.routing.per_token = 33, most);
    check(|experts| experts.routing.groups = Some(GROUPS), "more than 32 groups of experts");
    let floor = "a least sum of the chosen experts' weights (moe_norm_min)";
    check(|experts| experts.routing.floor = 1e-12, floor);
}
