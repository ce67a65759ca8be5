//! The configuration files of a model that is made.

use serde_json::{Value, json};

use super::dtype::Dtype;
use super::shapes::ModelShape;

/// `config.json` of a model of `shape` with weights of `dtype`.
pub(super) fn config(shape: &ModelShape, dtype: Dtype) -> Value {
    let architecture = match shape.model_type {
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        "olmoe" => "OlmoeForCausalLM",
        "gemma3_text" => "Gemma3ForCausalLM",
        "qwen3_5_text" => "Qwen3_5ForCausalLM",
        "qwen3_5_moe_text" => "Qwen3_5MoeForCausalLM",
        _ => "LlamaForCausalLM",
    };
    let mut config = json!({
        "architectures": [architecture],
        "model_type": shape.model_type,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": dtype.names().1,
    });
    if shape.llama3_rope {
        let factor = if shape.hidden_size == 2048 { 32.0 } else { 8.0 };
        config["rope_scaling"] = json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
    }
    if let Some(window) = shape.window {
        (config["sliding_window"], config["sliding_window_pattern"]) = (json!(window), json!(6));
        (config["rope_local_base_freq"], config["query_pre_attn_scalar"]) =
            (json!(10_000.0), json!(shape.head_dim));
        config["hidden_activation"] = json!("gelu_pytorch_tanh");
    }
    if let Some((count, per_token)) = shape.experts {
        (config["num_experts"], config["num_experts_per_tok"]) = (json!(count), json!(per_token));
        config["norm_topk_prob"] = json!(false);
    }
    if let Some((key_heads, value_heads)) = shape.delta {
        add_delta(&mut config, shape, key_heads, value_heads);
    }
    config
}

/// Fields of Qwen 3.5: every fourth layer attends and rotates a quarter of each head.
fn add_delta(config: &mut Value, shape: &ModelShape, key_heads: usize, value_heads: usize) {
    let attends = |layer: usize| if layer % 4 == 3 { "full_attention" } else { "linear_attention" };
    config["layer_types"] = (0..shape.num_hidden_layers).map(attends).collect();
    config["rope_parameters"] =
        json!({"rope_type": "default", "rope_theta": shape.rope_theta, "partial_rotary_factor": 0.25});
    config["linear_num_key_heads"] = json!(key_heads);
    config["linear_num_value_heads"] = json!(value_heads);
    config["linear_key_head_dim"] = json!(128);
    config["linear_value_head_dim"] = json!(128);
    config["linear_conv_kernel_dim"] = json!(4);
    if shape.experts.is_some() {
        config["moe_intermediate_size"] = json!(shape.intermediate_size);
        config["shared_expert_intermediate_size"] = json!(shape.intermediate_size);
    }
}

/// `generation_config.json` of every model.
pub(super) fn generation_config() -> Value {
    json!({"bos_token_id": 0, "eos_token_id": 1, "do_sample": false})
}
