//! Tiny models with seeded weights, created by the tests.

use std::collections::HashSet;
use std::path::Path;

use half::{bf16, f16};
use serde_json::json;
use skein_model::config::ModelConfig;
use skein_model::tensors::{self, Kind, Tensor};
use skein_node::random::SplitMix64;

/// Architecture and sizes of a tiny model.
#[derive(Debug, Clone, Copy)]
pub struct Tiny {
    pub model_type: &'static str,
    pub dtype: &'static str,
    pub tied: bool,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub vocab: usize,
    /// Further fields of config.json, as an object.
    pub fields: &'static str,
}

pub const LLAMA: Tiny = Tiny {
    model_type: "llama",
    dtype: "BF16",
    tied: false,
    hidden: 128,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    inner: 192,
    vocab: 300,
    fields: "{}",
};
/// Heads of 128 values, four query heads per KV head.
pub const GROUPED: Tiny = Tiny { heads: 8, head_dim: 128, ..LLAMA };
/// Biases on queries, keys and values, tied embeddings, half precision.
pub const QWEN2: Tiny = Tiny { model_type: "qwen2", dtype: "F16", tied: true, kv_heads: 1, ..LLAMA };
/// Single precision, converted at load.
pub const WIDE: Tiny = Tiny { dtype: "F32", heads: 2, kv_heads: 2, ..LLAMA };
/// With normalised heads.
pub const QWEN3: Tiny = Tiny { model_type: "qwen3", vocab: 301, ..LLAMA };

/// Layer normalisation with biases, biases everywhere, a feed-forward network without a gate.
pub const STARCODER2: Tiny = Tiny {
    model_type: "starcoder2",
    fields: r#"{"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5}"#,
    ..LLAMA
};
/// Attention beside the feed-forward network, layer normalisation, adjacent pairs rotated; one layer of two
/// with a window, the other without rotation.
pub const COHERE2: Tiny = Tiny {
    model_type: "cohere2",
    fields: r#"{"sliding_window": 16, "sliding_window_pattern": 2, "logit_scale": 0.5}"#,
    ..LLAMA
};
/// Outputs normalised instead of inputs, queries and keys normalised over all heads.
pub const OLMO2: Tiny = Tiny { model_type: "olmo2", ..LLAMA };
/// Dense layers of Llama 4: attention within chunks and heads normalised without weights in the first;
/// queries scaled by their position in the second, which does not rotate.
pub const LLAMA4: Tiny = Tiny {
    model_type: "llama4_text",
    fields: r#"{"moe_layers": [], "intermediate_size_mlp": 192, "attention_chunk_size": 12, "no_rope_layers": [1, 0],
        "floor_scale": 8, "attn_scale": 0.5}"#,
    ..LLAMA
};
/// A window in every layer.
pub const MISTRAL: Tiny = Tiny { model_type: "mistral", fields: r#"{"sliding_window": 20}"#, ..LLAMA };
/// One of each kind of layer.
pub const KINDS: [(&str, Tiny); 4] =
    [("starcoder2", STARCODER2), ("cohere2", COHERE2), ("olmo2", OLMO2), ("llama4", LLAMA4)];

/// Experts in the first layer, beside a weighted shared network; the second layer is dense.
pub const QWEN2_MOE: Tiny = Tiny {
    model_type: "qwen2_moe",
    fields: r#"{"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96, "mlp_only_layers": [1], "norm_topk_prob": false}"#,
    ..LLAMA
};
/// Experts in the second layer, chosen by corrected sigmoids from two of four groups.
pub const GLM4_MOE: Tiny = Tiny {
    model_type: "glm4_moe",
    fields: r#"{"n_routed_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 48, "n_shared_experts": 2,
        "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5}"#,
    ..LLAMA
};
/// Mixtures of experts.
pub const MIXTURES: [(&str, Tiny); 2] = [("qwen2_moe", QWEN2_MOE), ("glm4_moe", GLM4_MOE)];

/// Latent attention with queries from a vector; the second layer has experts in groups.
pub const DEEPSEEK_V3: Tiny = Tiny {
    model_type: "deepseek_v3",
    kv_heads: 4,
    head_dim: 16,
    fields: r#"{"q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "n_shared_experts": 1,
        "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5}"#,
    ..LLAMA
};
/// The same with a latent that can be cached in 8 bits, and with leaves that eight ranks can share.
pub const DEEPSEEK_V3_SHARED: Tiny = Tiny {
    heads: 8,
    kv_heads: 8,
    inner: 256,
    fields: r#"{"q_lora_rank": 48, "kv_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "n_shared_experts": 1,
        "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5}"#,
    ..DEEPSEEK_V3
};
/// Latent attention with more heads than a small tile has rows, queries from the layer's input, YaRN, and no
/// experts.
pub const DEEPSEEK_V2: Tiny = Tiny {
    model_type: "deepseek_v2",
    heads: 24,
    kv_heads: 24,
    head_dim: 16,
    fields: r#"{"q_lora_rank": null, "kv_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 8,
        "first_k_dense_replace": 2, "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.707,
        "mscale_all_dim": 0.9, "original_max_position_embeddings": 64}}"#,
    ..LLAMA
};
/// Models with latent attention.
pub const LATENTS: [(&str, Tiny); 2] = [("deepseek_v3", DEEPSEEK_V3), ("deepseek_v2", DEEPSEEK_V2)];

/// Uniform value in [-1, 1).
fn even(random: &mut SplitMix64) -> f32 {
    (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn write_file(path: &Path, header: serde_json::Map<String, serde_json::Value>, data: &[u8]) {
    let header = serde_json::Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    std::fs::write(path, file).unwrap();
}

impl Tiny {
    /// Writes config.json and model.safetensors into a new directory.
    pub fn make(&self, seed: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), self.config().to_string()).unwrap();
        self.write_weights(seed, &dir.path().join("model.safetensors"));
        dir
    }

    fn config(&self) -> serde_json::Value {
        let mut config = json!({
            "architectures": ["TestForCausalLM"], "model_type": self.model_type, "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocab, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "eos_token_id": 1,
            "tie_word_embeddings": self.tied, "rope_theta": 10000.0,
        });
        let fields: serde_json::Map<_, _> = serde_json::from_str(self.fields).unwrap();
        config.as_object_mut().unwrap().extend(fields);
        config
    }

    /// Sets the first value of a tensor to NaN in the bfloat16 model in `dir`.
    pub fn spoil(dir: &Path, tensor: &str) {
        let path = dir.join("model.safetensors");
        let mut file = std::fs::read(&path).unwrap();
        let data = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&file[8..data]).unwrap();
        let at = data + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
        file[at..at + 2].copy_from_slice(&bf16::NAN.to_le_bytes());
        std::fs::write(path, file).unwrap();
    }

    /// Multiplies all tensors of the bfloat16 model in `dir` whose names end in `ending`.
    pub fn multiply(dir: &Path, ending: &str, factor: f32) {
        Self::edit(dir, |header, data| {
            for (_, entry) in header.iter().filter(|(name, _)| name.ends_with(ending)) {
                let [start, end] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
                for value in data[start..end].chunks_exact_mut(2) {
                    let product = bf16::from_le_bytes([value[0], value[1]]).to_f32() * factor;
                    value.copy_from_slice(&bf16::from_f32(product).to_le_bytes());
                }
            }
        });
    }

    /// Adds a tensor of one 32-bit value to the model in `dir`.
    pub fn add_scale(dir: &Path, name: &str, shape: &[usize], values: &[f32]) {
        Self::edit(dir, |header, data| {
            let start = data.len();
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(name.to_owned(), entry);
        });
    }

    fn edit(dir: &Path, change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>, &mut Vec<u8>)) {
        let path = dir.join("model.safetensors");
        let file = std::fs::read(&path).unwrap();
        let data = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let mut header = serde_json::from_slice(&file[8..data]).unwrap();
        let mut data = file[data..].to_vec();
        change(&mut header, &mut data);
        write_file(&path, header, &data);
    }

    fn write_weights(&self, seed: u64, path: &Path) {
        let (mut header, mut data, mut random) = (serde_json::Map::new(), Vec::new(), SplitMix64::new(seed));
        for (name, shape, spread, center) in self.tensors() {
            let start = data.len();
            for _ in 0..shape.iter().product::<usize>() {
                let value = center + spread * even(&mut random);
                match self.dtype {
                    "BF16" => data.extend(bf16::from_f32(value).to_le_bytes()),
                    "F16" => data.extend(f16::from_f32(value).to_le_bytes()),
                    _ => data.extend(value.to_le_bytes()),
                }
            }
            let entry = json!({"dtype": self.dtype, "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(name, entry);
        }
        write_file(path, header, &data);
    }

    /// Name, shape and range of values of each tensor.
    fn tensors(&self) -> Vec<(String, Vec<usize>, f32, f32)> {
        let config = self.config();
        let spec = ModelConfig::parse(config.as_object().unwrap(), &serde_json::Map::new()).unwrap().spec;
        let values = |tensor: Tensor| {
            let (spread, center) = match tensor.kind {
                Kind::Table => (1.0, 0.0),
                Kind::Matrix(..) => ((3.0 / tensor.cols as f32).sqrt(), 0.0),
                Kind::Bias(..) | Kind::NormBias | Kind::Values => (0.3, 0.0),
                Kind::Norm => (0.2, 1.0),
            };
            (tensor.name.clone(), tensor.shape(), spread, center)
        };
        let mut all: Vec<_> = tensors::all(&spec).into_iter().map(values).collect();
        // The heads' matrices of latent attention are parts of one tensor.
        let mut named = HashSet::new();
        all.retain(|(name, ..)| named.insert(name.clone()));
        all
    }
}
