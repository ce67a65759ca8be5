//! Models with random weights whose states and leaves four ranks can divide.

use std::collections::BTreeSet;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use skein_model::config::ModelConfig;
use skein_model::tensors;

/// Goldens whose configurations the models are like.
pub const MODELS: [&str; 11] = [
    "qwen3-5",
    "qwen3-5-moe",
    "qwen3-next",
    "lfm2-v5",
    "lfm2-moe",
    "granite-hybrid",
    "granite-hybrid-v5",
    "nemotron-h",
    "nemotron-h-moe",
    "nemotron-h-latent",
    "kimi-linear",
];

/// A model like the golden `name`, large enough for four ranks.
pub fn make(name: &str) -> tempfile::TempDir {
    let path = skein_golden::path(format!("models/{name}")).join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let size = json!({"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 8, "vocab_size": 300,
        "num_hidden_layers": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 12,
        "linear_value_head_dim": 16, "num_experts_per_tok": 2,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"]});
    config.as_object_mut().unwrap().extend(size.as_object().unwrap().clone());
    if name.starts_with("lfm2") {
        config["hidden_size"] = json!(128);
        config["layer_types"] = json!(["conv", "full_attention", "conv", "conv"]);
    }
    if name.starts_with("kimi") {
        config["num_key_value_heads"] = json!(8);
        config["v_head_dim"] = json!(32);
        config["linear_attn_config"] = json!({"num_heads": 8, "head_dim": 16, "short_conv_kernel_size": 4});
    }
    if name.starts_with("granite") {
        config["hidden_size"] = json!(128);
        config["mamba_n_groups"] = json!(4);
        config["mamba_d_head"] = json!("auto");
        config["shared_intermediate_size"] = json!(256);
        config["layer_types"] = json!(["mamba", "attention", "mamba", "mamba"]);
    }
    if name.starts_with("nemotron") {
        let network = if name == "nemotron-h" { "mlp" } else { "moe" };
        config["layer_types"] = json!(["linear_attention", network, "full_attention", network]);
        (config["layers_block_type"], config["hybrid_override_pattern"]) = (Value::Null, Value::Null);
        let sizes = json!({"mamba_num_heads": 16, "mamba_head_dim": 16, "n_groups": 4});
        config.as_object_mut().unwrap().extend(sizes.as_object().unwrap().clone());
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let spec = ModelConfig::from_dir(directory.path()).unwrap().spec;
    let mut names = BTreeSet::new();
    let data: Vec<_> = tensors::all(&spec)
        .into_iter()
        .filter(|tensor| names.insert(tensor.name.clone())) // parts of one tensor
        .enumerate()
        .map(|(seed, tensor)| {
            let noise = |i: usize| {
                let hash = (i as u32 ^ (seed as u32) << 20).wrapping_mul(0x9E37_79B1).rotate_left(13);
                (hash.wrapping_mul(0x85EB_CA6B) >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            let count = tensor.shape().iter().product();
            let values = (0..count).map(|i| half::bf16::from_f32(noise(i) * 0.3));
            (tensor, values.flat_map(half::bf16::to_le_bytes).collect::<Vec<u8>>())
        })
        .collect();
    let views = data.iter().map(|(tensor, bytes)| {
        (tensor.name.clone(), TensorView::new(Dtype::BF16, tensor.shape(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &directory.path().join("model.safetensors")).unwrap();
    directory
}
