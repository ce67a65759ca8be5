//! The longest sequence of a model whose configuration does not say it.

/// `max_position_embeddings` of the configuration class of `model_type` in transformers 5.
pub(super) fn default_positions(model_type: &str) -> Option<u32> {
    Some(match model_type {
        "deepseek_v2" | "exaone4" | "granite" | "granitemoe" | "granitemoehybrid" | "llama" | "olmo2"
        | "olmo3" => 2048,
        "deepseek_v3" | "kimi_k2" | "nemotron_h" | "olmoe" | "phi3" | "starcoder2" => 4096,
        "bert" | "camembert" | "roberta" | "xlm-roberta" => 512,
        "cohere" | "cohere2" | "gemma2" | "gte" | "modernbert" | "new" => 8192,
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_5_moe_text" | "qwen3_5_text" | "qwen3_moe"
        | "qwen3_next" | "smollm3" => 32_768,
        "minimax_m2" => 196_608,
        "deepseek_v32" => 163_840,
        "glm4_moe_lite" => 202_752,
        "ministral3" => 262_144,
        "seed_oss" => 524_288,
        "kimi_linear" => 1_048_576,
        "lfm2" | "lfm2_moe" => 128_000,
        "ernie4_5" | "ernie4_5_moe" | "gemma3_text" | "gemma4_text" | "glm" | "glm4" | "glm4_moe"
        | "gpt_oss" | "llama4_text" | "mistral" | "mixtral" => 131_072,
        _ => return None,
    })
}
