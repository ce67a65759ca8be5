//! Shapes of known models.

/// Architectural parameters that determine a model's size and speed.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // named as in config.json
pub struct ModelShape {
    pub name: &'static str,
    pub model_type: &'static str,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub rope_theta: f64,
    pub llama3_rope: bool,
    pub tied: bool,
    pub qkv_bias: bool,
    /// Numbers of experts per layer and per token.
    pub experts: Option<(usize, usize)>,
    /// Window of five of six layers, in tokens.
    pub window: Option<usize>,
    /// Heads of keys and of values, each of 128, in three of four layers: a gated delta rule instead of
    /// attention.
    pub delta: Option<(usize, usize)>,
}

const LLAMA: ModelShape = ModelShape {
    name: "tiny-llama",
    model_type: "llama",
    hidden_size: 64,
    intermediate_size: 176,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 16,
    vocab_size: 4096,
    max_position_embeddings: 2048,
    rope_theta: 10_000.0,
    llama3_rope: false,
    tied: false,
    qkv_bias: false,
    experts: None,
    window: None,
    delta: None,
};

const LLAMA3: ModelShape = ModelShape {
    num_key_value_heads: 8,
    head_dim: 128,
    vocab_size: 128_256,
    max_position_embeddings: 131_072,
    rope_theta: 500_000.0,
    llama3_rope: true,
    ..LLAMA
};

const QWEN3: ModelShape = ModelShape {
    model_type: "qwen3",
    num_key_value_heads: 8,
    head_dim: 128,
    vocab_size: 151_936,
    max_position_embeddings: 40_960,
    rope_theta: 1_000_000.0,
    tied: true,
    ..LLAMA
};

const QWEN3_5: ModelShape = ModelShape {
    model_type: "qwen3_5_text",
    head_dim: 256,
    vocab_size: 248_320,
    max_position_embeddings: 262_144,
    rope_theta: 10_000_000.0,
    tied: true,
    ..LLAMA
};

/// Models that can be created: tiny ones for tests, the others as published.
pub const SHAPES: &[ModelShape] = &[
    LLAMA,
    ModelShape { name: "tiny-qwen2", model_type: "qwen2", tied: true, qkv_bias: true, ..LLAMA },
    ModelShape { name: "tiny-qwen3", model_type: "qwen3", ..LLAMA },
    ModelShape {
        name: "tiny-qwen3.5",
        model_type: "qwen3_5_text",
        num_hidden_layers: 4,
        max_position_embeddings: 4096,
        delta: Some((2, 4)),
        ..LLAMA
    },
    ModelShape {
        name: "smollm2-135m",
        hidden_size: 576,
        intermediate_size: 1536,
        num_hidden_layers: 30,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        vocab_size: 49_152,
        max_position_embeddings: 8192,
        rope_theta: 100_000.0,
        tied: true,
        ..LLAMA
    },
    ModelShape {
        name: "llama-3.2-1b",
        hidden_size: 2048,
        intermediate_size: 8192,
        num_hidden_layers: 16,
        num_attention_heads: 32,
        head_dim: 64,
        tied: true,
        ..LLAMA3
    },
    ModelShape {
        name: "llama-3.1-8b",
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        ..LLAMA3
    },
    ModelShape {
        name: "qwen2.5-0.5b",
        model_type: "qwen2",
        hidden_size: 896,
        intermediate_size: 4864,
        num_hidden_layers: 24,
        num_attention_heads: 14,
        num_key_value_heads: 2,
        head_dim: 64,
        vocab_size: 151_936,
        max_position_embeddings: 32_768,
        rope_theta: 1_000_000.0,
        tied: true,
        qkv_bias: true,
        ..LLAMA
    },
    ModelShape {
        name: "qwen3-0.6b",
        hidden_size: 1024,
        intermediate_size: 3072,
        num_hidden_layers: 28,
        num_attention_heads: 16,
        ..QWEN3
    },
    ModelShape {
        name: "qwen3-4b",
        hidden_size: 2560,
        intermediate_size: 9728,
        num_hidden_layers: 36,
        num_attention_heads: 32,
        ..QWEN3
    },
    ModelShape {
        name: "olmoe-1b-7b",
        model_type: "olmoe",
        hidden_size: 2048,
        intermediate_size: 1024,
        num_hidden_layers: 16,
        num_attention_heads: 16,
        num_key_value_heads: 16,
        head_dim: 128,
        vocab_size: 50_304,
        max_position_embeddings: 4096,
        experts: Some((64, 8)),
        ..LLAMA
    },
    ModelShape {
        name: "gemma-3-1b",
        model_type: "gemma3_text",
        hidden_size: 1152,
        intermediate_size: 6912,
        num_hidden_layers: 26,
        num_attention_heads: 4,
        num_key_value_heads: 1,
        head_dim: 256,
        vocab_size: 262_144,
        max_position_embeddings: 32_768,
        rope_theta: 1_000_000.0,
        tied: true,
        window: Some(512),
        ..LLAMA
    },
    ModelShape {
        name: "qwen3.5-0.8b",
        hidden_size: 1024,
        intermediate_size: 3584,
        num_hidden_layers: 24,
        num_attention_heads: 8,
        delta: Some((16, 16)),
        ..QWEN3_5
    },
    ModelShape {
        name: "qwen3.5-4b",
        hidden_size: 2560,
        intermediate_size: 9216,
        num_hidden_layers: 32,
        num_attention_heads: 16,
        num_key_value_heads: 4,
        delta: Some((16, 32)),
        ..QWEN3_5
    },
    ModelShape {
        name: "qwen3.5-35b-a3b",
        model_type: "qwen3_5_moe_text",
        hidden_size: 2048,
        intermediate_size: 512,
        num_hidden_layers: 40,
        num_attention_heads: 16,
        tied: false,
        experts: Some((256, 8)),
        delta: Some((16, 32)),
        ..QWEN3_5
    },
    ModelShape {
        name: "llama-3.1-70b",
        hidden_size: 8192,
        intermediate_size: 28_672,
        num_hidden_layers: 80,
        num_attention_heads: 64,
        ..LLAMA3
    },
];
