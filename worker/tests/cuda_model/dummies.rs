//! Dummy weights in codes (`--load-format dummy`): of every form that checkpoints have, from their
//! config.json alone, and of the flags that quantise.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use serde_json::{Value, json};
use skein_golden::path;
use skein_kernels::cpu::blocks::BlockType;
use skein_kernels::cuda::ops::packed::{Meaning, ScaleKind};
use skein_model::config::ModelConfig;
use skein_model::on_cuda::dummy::DummyCodes;
use skein_model::on_cuda::packed::{Forms, Matrix};
use skein_model::on_cuda::weights::forms_of_dummies;
use skein_model::shard::Shard;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::Batch;
use skein_worker::backend::cuda::{CudaBackend, CudaOptions, Fp8};
use skein_worker::config::{BackendKind, CudaConfig, LoadFormat, Precision, Quantization, WorkerConfig};
use skein_worker::load::{MemoryPlan, plan};

use crate::models::{DEEPSEEK_V3_SHARED, LLAMA, MIXTURES, Tiny};
use crate::quantised::goldens;
use crate::runs::{eager, limits, load, options, prompt, sample, sequence_of, step};
use crate::scores::scores_of;

const KV_BYTES: u64 = 1 << 20;
/// What a directory without weights has.
const FILES: [&str; 3] = ["config.json", "hf_quant_config.json", "quantize_config.json"];

fn dummies() -> CudaConfig {
    CudaConfig { load_format: LoadFormat::Dummy, ..eager() }
}

/// A directory with the description of the model in `from` only, with some fields changed.
fn without_weights(from: &Path, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in FILES.iter().filter(|file| from.join(file).exists()) {
        std::fs::copy(from.join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    dir
}

fn planned(
    model: &Path,
    load_format: LoadFormat,
    quantization: Option<Quantization>,
) -> Result<MemoryPlan, String> {
    let config = WorkerConfig {
        backend: BackendKind::Cuda,
        scheduler: limits(),
        kv_cache_memory_bytes: Some(KV_BYTES),
        cuda: CudaConfig { load_format, ..eager() },
        precision: Precision { quantization, ..Precision::default() },
        ..WorkerConfig::new(model, "m")
    };
    plan(&config).map_err(|error| error.to_string())
}

/// The directory's dummy weights take the same memory as the weights of `model`, and compute.
fn check(name: &str, model: &Path, dir: &Path, vocab: u32, quantization: Option<Quantization>) {
    let expected = planned(model, LoadFormat::Auto, quantization);
    assert_eq!(planned(dir, LoadFormat::Dummy, quantization), expected, "{name}");
    expected.unwrap();
    check_runs(name, dir, vocab, quantization);
}

/// A first step has finite logits (the load checks them); a prompt's log-probabilities are finite and of more
/// than one token; and tokens are drawn.
fn check_runs(name: &str, dir: &Path, vocab: u32, quantization: Option<Quantization>) {
    use skein_kernels::cpu::packed::Format;
    let rounded = match quantization {
        Some(Quantization::Int8) => Some(Format::INT8),
        Some(Quantization::Int4) => Some(Format::INT4_ZERO),
        Some(Quantization::Fp8) | None => None,
    };
    let fp8 = Fp8 { weights: quantization == Some(Quantization::Fp8), kv_cache: false };
    let options = CudaOptions { rounded, fp8, ..options(dummies(), limits(), Some(KV_BYTES)) };
    let mut backend = load(dir, options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let tokens: Vec<u32> = prompt(1, 20).into_iter().map(|token| token % vocab).collect();
    let scores = scores_of(&mut backend, &tokens, &[19], false);
    let is_spread = |of: &skein_proto::logprobs::TokenLogprobs| {
        of.logprob.is_finite() && of.top.iter().all(|(_, logprob)| logprob.is_finite()) && of.top[0].1 < -0.01
    };
    assert!(scores.len() == 19 && scores.iter().all(is_spread), "{name}: {scores:?}");
    let drawn = draws(&mut backend, &tokens, 3);
    assert!(drawn.iter().all(|token| *token < vocab), "{name}: {drawn:?}");
}

fn draws(backend: &mut CudaBackend, tokens: &[u32], count: usize) -> Vec<u32> {
    let params = Arc::new(SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() });
    let mut sequence = sequence_of(tokens.to_vec(), 1);
    let mut drawn = Vec::new();
    for _ in 0..count {
        let mut batch = Batch::default();
        let new = sequence.tokens.len() - sequence.computed;
        sequence.put(&mut batch, new);
        sample(&sequence, &mut batch, &params, 0, None);
        let token = step(backend, batch).drawn().next().unwrap().token;
        sequence.tokens.push(token);
        drawn.push(token);
    }
    drawn
}

fn vocab(dir: &Path) -> u32 {
    ModelConfig::from_dir(dir).unwrap().spec.vocab_size
}

#[test]
fn dummies_of_every_checkpoint_take_its_memory_and_compute() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let (mut all, _) = goldens();
    all.push(path("models/gpt-oss-mxfp4"));
    for path in all {
        let name = path.file_name().unwrap().to_str().unwrap();
        // This one's head is in codes, which libraries say in the file only.
        let dir = without_weights(&path, |config| {
            if name == "gptq-4-v2-head" {
                config["quantization_config"]["lm_head"] = json!(true);
            }
        });
        check(name, &path, dir.path(), vocab(&path), None);
    }
}

#[test]
fn dummies_quantised_by_a_flag_take_the_memory_of_quantised_weights() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in [("llama", LLAMA), ("deepseek", DEEPSEEK_V3_SHARED)].into_iter().chain(MIXTURES) {
        for quantization in [Quantization::Int8, Quantization::Int4, Quantization::Fp8] {
            let model = tiny.make(7);
            let dir = without_weights(model.path(), |_| {});
            let name = format!("{name} {quantization:?}");
            check(&name, model.path(), dir.path(), tiny.vocab as u32, Some(quantization));
        }
    }
}

/// A config whose matrices are all in a type of GGUF.
fn in_blocks(config: &mut Value, kind: BlockType) {
    config["quantization_config"] = json!({"quant_method": "gguf", "type": kind.name()});
}

#[test]
fn dummies_of_every_type_of_gguf_compute() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let tiny = Tiny { hidden: 256, inner: 256, vocab: 304, layers: 1, ..LLAMA };
    let model = tiny.make(7);
    for kind in BlockType::ALL {
        for tied in [false, true] {
            let dir = without_weights(model.path(), |config| {
                config["tie_word_embeddings"] = json!(tied);
                in_blocks(config, kind);
            });
            check_runs(kind.name(), dir.path(), 304, None);
        }
    }
}

/// The file was written by the `gguf` package: latent attention and experts, all matrices in Q8_0.
#[test]
fn dummies_in_blocks_take_the_memory_of_a_gguf_file() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let file = path("gguf/models/latent/latent-q8.gguf");
    let model = Tiny {
        model_type: "deepseek_v2",
        hidden: 64,
        heads: 4,
        kv_heads: 4,
        head_dim: 32,
        inner: 96,
        vocab: 128,
        fields: r#"{"q_lora_rank": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "norm_topk_prob": false, "rms_norm_eps": 1e-6}"#,
        ..LLAMA
    }
    .make(7);
    let dir = without_weights(model.path(), |config| in_blocks(config, BlockType::Q8_0));
    check("latent-q8", &file, dir.path(), 128, None);
}

fn forms(dir: &Path, shard: impl FnOnce(&ModelConfig) -> Shard, is_f16: bool) -> Result<Forms, String> {
    let config = ModelConfig::from_dir(dir).map_err(|error| error.to_string())?;
    let shard = shard(&config);
    let codes = DummyCodes::of(dir, is_f16, None).map_err(|error| error.to_string())?;
    let forms = match is_f16 {
        true => forms_of_dummies::<f16>(&config.spec, &shard, &codes),
        false => forms_of_dummies::<bf16>(&config.spec, &shard, &codes),
    };
    forms.map_err(|error| error.to_string())
}

fn whole(config: &ModelConfig) -> Shard {
    Shard::whole(&config.spec)
}

#[test]
fn forms_that_cannot_be_made_are_refused_by_name() {
    let model = LLAMA.make(7);
    let refused = |method: Value, expected: &[&str]| {
        let dir = without_weights(model.path(), |config| config["quantization_config"] = method.clone());
        let said = forms(dir.path(), whole, false).err().unwrap_or_else(|| panic!("{method} was taken"));
        assert!(expected.iter().all(|part| said.contains(part)), "{method}: {said}");
    };
    refused(json!({"quant_method": "gguf", "type": "Q4_K"}), &["Q4_K", "blocks of 256", "q4_0"]);
    refused(json!({"quant_method": "gguf", "type": "Q9"}), &["type", "Q9", "Q4_K"]);
    refused(json!({"quant_method": "bitsandbytes", "load_in_8bit": true}), &["load_in_4bit", "NF4"]);
    refused(json!({"quant_method": "awq", "bits": 4, "group_size": 40}), &["40", "multiple of 16"]);
    refused(
        json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"+:.*down.*": {"bits": 8}}}),
        &["dynamic", "--load-format dummy"],
    );
    let w4 = |ignore: &str, inputs: u32| {
        json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": [ignore],
            "config_groups": {"group_0": {"targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": inputs}}}})
    };
    refused(w4("re:.*(up|down)_proj", 32), &["ignore", "re:.*(up|down)_proj"]);
    refused(w4("lm_head", 256), &["128 inputs", "multiples of 256", "compressed-tensors"]);
    // Half of a product in 16 bits.
    refused(w4("re:.*up_proj", 32), &["up_proj", "16 or 32 bits"]);
}

#[test]
fn modules_in_16_bits_and_groups_of_targets_are_those_of_the_description() {
    use skein_model::on_cuda::network::Network::Layer;
    use skein_model::tensors::Product::{AttentionOutput, Down, GateUp, Qkv};
    let model = LLAMA.make(7);
    let weights = |bits: u32, of: &str| json!({"num_bits": bits, "type": of, "strategy": "channel", "group_size": null});
    let dir = without_weights(model.path(), |config| {
        config["quantization_config"] = json!({
            "quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head", "re:.*layers.1.mlp.*"],
            "config_groups": {
                "group_0": {"targets": ["Linear"], "format": "pack-quantized", "weights": weights(4, "int")},
                "group_1": {"targets": ["re:.*self_attn.*"], "format": "float-quantized", "weights": weights(8, "float")},
            },
        });
    });
    let meanings = |is_f16| {
        let forms = forms(dir.path(), whole, is_f16).unwrap();
        [0, 1].map(|layer| {
            [Qkv, AttentionOutput, GateUp, Down].map(|product| {
                let form = forms.get(Matrix::Product(Some(layer), Layer, product));
                form.map(|form| (form.meaning, form.bits, form.scales))
            })
        })
    };
    for (is_f16, scales) in [(false, ScaleKind::F32), (true, ScaleKind::F16)] {
        let (floats, integers) = (Some((Meaning::E4m3, 8, scales)), Some((Meaning::Integers, 4, scales)));
        let expected = [[floats, floats, integers, integers], [floats, floats, None, None]];
        assert_eq!(meanings(is_f16), expected);
    }
}

#[test]
fn a_description_of_blocks_without_files_says_what_serves_it() {
    let model = LLAMA.make(7);
    let dir = without_weights(model.path(), |config| in_blocks(config, BlockType::Q8_0));
    let said = planned(dir.path(), LoadFormat::Auto, None);
    if skein_cuda_emulation::load() {
        let said = said.err().unwrap();
        assert!(said.contains("Q8_0") && said.contains("--load-format dummy"), "{said}");
    }
    let config = WorkerConfig { backend: BackendKind::Cpu, ..WorkerConfig::new(dir.path(), "m") };
    let said = plan(&config).err().unwrap().to_string();
    assert!(said.contains("Q8_0") && said.contains("--load-format dummy"), "{said}");
}

#[test]
fn dummies_are_made_from_a_directory_and_quantised_once() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let file: PathBuf = path("gguf/models/latent/latent-q8.gguf");
    let said = planned(&file, LoadFormat::Dummy, None).err().unwrap();
    assert!(said.contains("GGUF file") && said.contains("skein-dev make-model"), "{said}");
    let model = path("quantised/awq");
    let said = planned(&model, LoadFormat::Dummy, Some(Quantization::Int4)).err().unwrap();
    assert!(said.contains("AWQ") && said.contains("leave it out"), "{said}");
}
