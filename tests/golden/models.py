"""Makes tiny random models as Hugging Face directories, and the outputs of transformers with them in float32.

Weights are drawn so that a mistake shows: norm weights and biases are random, attention is far from uniform,
and logits spread by more than one. A seed is used only if the best token on the greedy path always beats the
second by MIN_MARGIN, so that rounding in another implementation cannot change a token.
"""

import json
import pathlib
import shutil
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import logging

import weights

HERE = pathlib.Path(__file__).resolve().parent
PROMPT_TOKENS, GREEDY_TOKENS, MIN_MARGIN, MIN_DISTINCT = 40, 64, 0.02, 24
# Largest difference of a logit from that in float64: other implementations round, too, and must stay within
# 1e-4. Few networks of deepseek-v2's kind amplify rounding so little.
MAX_ROUNDING, ROUNDING = 5e-5, {"deepseek-v2": 7.5e-5}
# Models whose log-probabilities in bfloat16 tests compare, and the largest mean difference by transformers in
# bfloat16, which rounds more often than the kernels. Of models with experts, the largest difference at
# PROMPT_POSITIONS: rounding may choose other experts.
IN_BF16, MAX_IN_BF16 = ("llama-gqa", "llama3-rope", "qwen2-tied-v5", "qwen3", "gemma2", "phi3-long"), 0.1
EXPERTS_IN_BF16, MAX_OF_EXPERTS = ("deepseek-v2-lite", "deepseek-v2"), 0.2
PROMPT_POSITIONS = [0, 1, 2, 15, 16, 17, 31, 39]  # whose logits are kept, and
GREEDY_STEPS = list(range(0, GREEDY_TOKENS, 8)) + [GREEDY_TOKENS - 1]
BASE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.02, "use_cache": True,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 32, "rms_norm_eps": 1e-6,
           "rope_theta": 100000.0}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096,
         "max_window_layers": 2, "rms_norm_eps": 1e-6}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False, "sliding_window": None,
         "max_window_layers": 2, "rms_norm_eps": 1e-6, "head_dim": 32}

ABSENT = object()  # a key of BASE that the family's files leave out
GEMMA2 = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
          "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 96, "num_hidden_layers": 4, "head_dim": 32,
          "query_pre_attn_scalar": 24, "attn_logit_softcapping": 10.0, "final_logit_softcapping": 12.0,
          "sliding_window": 24, "rms_norm_eps": 1e-6, "mlp_bias": ABSENT, "tie_word_embeddings": ABSENT,
          "pad_token_id": 0, "bos_token_id": 2, "cache_implementation": "hybrid"}

LONG = {"rope_type": "longrope", "short_factor": [1.0 + 0.1 * i for i in range(6)],
        "long_factor": [1.5 + 0.9 * i for i in range(6)]}
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": ABSENT, "mlp_bias": ABSENT,
        "pad_token_id": 0, "rope_theta": 10000.0}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_act": ABSENT, "mlp_bias": ABSENT,
          "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 96, "num_hidden_layers": 4, "head_dim": 32,
          "query_pre_attn_scalar": 24, "sliding_window": 11, "rms_norm_eps": 1e-6, "tie_word_embeddings": ABSENT,
          "pad_token_id": 0, "bos_token_id": 2}
GLM = {"hidden_act": "silu", "head_dim": 32, "attention_bias": True, "mlp_bias": ABSENT, "pad_token_id": 0, "rms_norm_eps": 1.5e-7}
COHERE = {"rms_norm_eps": ABSENT, "layer_norm_eps": 1e-5, "mlp_bias": ABSENT,
          "pad_token_id": 0, "logit_scale": 1.5}
MOE = {"mlp_bias": ABSENT, "num_experts_per_tok": 2, "output_router_logits": False, "num_hidden_layers": 3}

# name: (stored as, safetensors files, config over BASE). Configs of both generations of transformers: version
# 4 wrote rope_theta, rope_scaling and torch_dtype; version 5 writes rope_parameters and dtype.
MODELS = {
    "llama-gqa": ("float32", 1, {"rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "float32"}),
    "llama-mha-tied": ("float32", 2, {
        "num_key_value_heads": 4, "tie_word_embeddings": True, "vocab_size": 257, "rope_theta": 500.0,
        "torch_dtype": "float32"}),
    "llama3-rope": ("bfloat16", 1, {
        "num_hidden_layers": 3, "rope_theta": 10000.0, "rope_scaling": LLAMA3, "torch_dtype": "bfloat16"}),
    "llama3-rope-v5": ("float16", 1, {
        "head_dim": 16, "vocab_size": 272, "rope_parameters": LLAMA3 | {"rope_theta": 10000.0}, "dtype": "float16"}),
    "mistral": ("bfloat16", 3, MISTRAL | {"sliding_window": None, "torch_dtype": "bfloat16"}),
    "mistral-window": ("bfloat16", 1, MISTRAL | {"num_hidden_layers": 3, "sliding_window": 24, "torch_dtype": "bfloat16"}),
    "qwen2": ("float16", 1, QWEN2 | {"vocab_size": 300, "rope_theta": 1000000.0, "torch_dtype": "float16"}),
    "qwen2-tied-v5": ("bfloat16", 1, QWEN2 | {
        "num_hidden_layers": 3, "tie_word_embeddings": True, "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "qwen3": ("bfloat16", 1, QWEN3 | {"num_hidden_layers": 3, "rope_theta": 1000000.0, "torch_dtype": "bfloat16"}),
    "qwen3-bias-v5": ("float16", 1, QWEN3 | {
        "vocab_size": 272, "attention_bias": True, "dtype": "float16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "gemma2": ("bfloat16", 2, GEMMA2 | {"rope_theta": 10000.0, "torch_dtype": "bfloat16"}),
    "gemma2-v5": ("float16", 1, GEMMA2 | {
        "num_attention_heads": 6, "vocab_size": 272, "sliding_window": 9, "cache_implementation": ABSENT,
        "tie_word_embeddings": True, "dtype": "float16",
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "rope-linear": ("bfloat16", 1, {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "rope-dynamic": ("bfloat16", 1, {"rope_theta": 500.0, "rope_scaling": {"type": "dynamic", "factor": 4.0}}),
    "rope-yarn": ("bfloat16", 1, QWEN2 | {"head_dim": 16, "rope_theta": 10000.0, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}),
    "rope-yarn-v5": ("bfloat16", 1, QWEN3 | {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 6.0,
        "beta_slow": 0.5, "truncate": False, "mscale": 1.0, "mscale_all_dim": 0.4}}),
    "qwen2-window": ("bfloat16", 1, QWEN2 | {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 13,
        "max_window_layers": 1, "rope_theta": 10000.0}),
    "phi3-long": ("bfloat16", 1, PHI3 | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True,
        "original_max_position_embeddings": 32, "sliding_window": None, "rope_scaling": LONG}),
    "phi3-v5": ("float16", 1, PHI3 | {"rope_theta": ABSENT, "sliding_window": 21, "original_max_position_embeddings": 256,
        "rope_parameters": LONG | {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    "gemma3": ("bfloat16", 1, GEMMA3 | {"rope_theta": 100000.0, "rope_local_base_freq": 1000.0, "sliding_window_pattern": 3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3-v5": ("float16", 1, GEMMA3 | {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    "glm": ("bfloat16", 1, GLM | {"architectures": ["GlmForCausalLM"], "model_type": "glm", "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0}),
    "glm4-v5": ("bfloat16", 1, GLM | {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    "granite": ("bfloat16", 1, {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "rope_theta": 10000.0,
        "num_hidden_layers": 3, "embedding_multiplier": 1.5, "residual_multiplier": 0.6, "attention_multiplier": 0.3,
        "logits_scaling": 2.0}),
    "smollm3": ("float16", 1, {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 5,
        "pad_token_id": 0, "rope_theta": 10000.0}),
    "olmo2": ("bfloat16", 1, {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_hidden_layers": 3,
        "pad_token_id": 0, "mlp_bias": ABSENT, "rope_theta": 500.0}),
    "starcoder2": ("bfloat16", 1, {"architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "mlp_bias": ABSENT,
        "hidden_act": "gelu_pytorch_tanh", "attention_bias": ABSENT, "rms_norm_eps": ABSENT, "norm_epsilon": 1e-5,
        "use_bias": True, "sliding_window": 19, "rope_theta": 10000.0}),
    "cohere": ("bfloat16", 1, COHERE | {"architectures": ["CohereForCausalLM"], "model_type": "cohere", "rope_theta": 10000.0,
        "use_qk_norm": False}),
    "cohere2-v5": ("float16", 1, COHERE | {"architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2",
        "num_hidden_layers": 4, "sliding_window": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}),
    "mixtral": ("bfloat16", 2, MOE | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "num_local_experts": 4, "sliding_window": None, "rope_theta": 10000.0}),
    "mixtral-v5": ("bfloat16", 1, MOE | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 17,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "olmoe": ("bfloat16", 1, MOE | {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 8,
        "norm_topk_prob": False, "num_experts_per_tok": 3, "intermediate_size": 48, "pad_token_id": 0, "rope_theta": 10000.0}),
    "qwen3-moe": ("bfloat16", 1, MOE | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 32,
        "num_experts": 6, "moe_intermediate_size": 48, "norm_topk_prob": True, "mlp_only_layers": [1],
        "decoder_sparse_step": 1, "rope_theta": 10000.0}),
    "granite-moe": ("bfloat16", 1, MOE | {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe",
        "num_local_experts": 6, "intermediate_size": 48, "embedding_multiplier": 1.5, "residual_multiplier": 0.6,
        "attention_multiplier": 0.3, "logits_scaling": 2.0, "tie_word_embeddings": True, "rope_theta": 10000.0}),
    "granite-moe-v5": ("float16", 1, MOE | {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe",
        "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 48, "residual_multiplier": 0.8,
        "attention_multiplier": 0.25, "logits_scaling": 3.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "qwen2-moe": ("bfloat16", 1, MOE | {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 6,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 56, "norm_topk_prob": False, "mlp_only_layers": [],
        "decoder_sparse_step": 1, "use_sliding_window": False, "rope_theta": 10000.0}),
    "glm4-moe-v5": ("bfloat16", 1, MOE | {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "head_dim": 32,
        "attention_bias": True, "use_qk_norm": True, "n_routed_experts": 9, "n_shared_experts": 2, "moe_intermediate_size": 48,
        "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "glm4-moe": ("bfloat16", 1, MOE | {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "head_dim": 32,
        "n_routed_experts": 6, "n_shared_experts": 1, "moe_intermediate_size": 48, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0, "use_qk_norm": False,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0}),
}

# GPT-OSS: limits low enough that both sides of the clamp occur.
GPT_OSS = MOE | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 32, "intermediate_size": 64,
    "attention_bias": True, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 13, "swiglu_limit": 1.1,
    "num_hidden_layers": 3}
YARN = {"factor": 8.0, "beta_fast": 6.0, "beta_slow": 0.5, "original_max_position_embeddings": 32}
# The experts of `gpt-oss-mxfp4` are drawn as 4-bit codes and powers of two.
MODELS |= {
    "gpt-oss": ("bfloat16", 2, GPT_OSS | {"rope_theta": 10000.0, "rope_scaling": YARN | {"rope_type": "yarn", "truncate": False},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "gpt-oss-v5": ("float16", 1, GPT_OSS | {"num_key_value_heads": 4, "num_experts_per_tok": 3, "swiglu_limit": 2.0,
        "swiglu_alpha": 1.2, "attention_bias": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
    "gpt-oss-mxfp4": ("bfloat16", 1, GPT_OSS | {"rope_theta": 10000.0,
        "rope_scaling": YARN | {"rope_type": "yarn", "truncate": False}, "quantization_config": {"quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}),
}

DEEPSEEK = MOE | {"kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20, "moe_intermediate_size": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "mlp_bias": ABSENT}
MSCALE = YARN | {"mscale": 0.707, "mscale_all_dim": 0.9}
V2 = DEEPSEEK | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "norm_topk_prob": False, "scoring_func": "softmax"}
V3 = DEEPSEEK | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "norm_topk_prob": True,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 1.8, "num_nextn_predict_layers": 1}
MODELS |= {
    "deepseek-v2-lite": ("bfloat16", 1, V2 | {"q_lora_rank": None, "n_routed_experts": 6, "n_shared_experts": 2, "n_group": 1,
        "topk_group": 1, "topk_method": "greedy", "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "moe_layer_freq": 1,
        "rope_theta": 10000.0, "rope_scaling": MSCALE | {"type": "yarn"}}),
    "deepseek-v2": ("bfloat16", 2, V2 | {"q_lora_rank": 48, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4,
        "topk_group": 2, "topk_method": "group_limited_greedy", "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
        "rope_theta": 10000.0, "rope_scaling": MSCALE | {"type": "yarn", "mscale_all_dim": 0.707}}),
    "deepseek-v3": ("bfloat16", 1, V3 | {"q_lora_rank": 48, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1, "rope_theta": 10000.0,
        "rope_scaling": MSCALE | {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek-v3-v5": ("float16", 1, V3 | {"q_lora_rank": None, "n_routed_experts": 6, "n_shared_experts": 2, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 2, "norm_topk_prob": False, "head_dim": 16, "rope_interleave": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
}

LLAMA4 = MOE | {"architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "head_dim": 16, "intermediate_size": 48,
    "intermediate_size_mlp": 80, "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 1, "pad_token_id": 0,
    "attention_chunk_size": 12, "no_rope_layer_interval": 2, "floor_scale": 8, "attn_scale": 0.2, "use_qk_norm": True}
MODELS |= {
    "llama4": ("bfloat16", 1, LLAMA4 | {"attn_temperature_tuning": True, "interleave_moe_layer_step": 2, "rope_theta": 10000.0,
        "rope_scaling": LLAMA3}),
    "llama4-v5": ("float16", 1, LLAMA4 | {"attn_temperature_tuning": False, "moe_layers": [0, 1, 3], "use_qk_norm": False,
        "num_experts_per_tok": 2, "no_rope_layers": [1, 1, 0, 1], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["chunked_attention", "full_attention", "full_attention", "chunked_attention"]}),
}

OLMO3 = {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "num_hidden_layers": 4, "pad_token_id": 0, "mlp_bias": ABSENT,
    "sliding_window": 11}
SEED_OSS = {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "head_dim": 32, "pad_token_id": 0, "rms_norm_eps": 1e-6,
    "num_hidden_layers": 3}
EXAONE4 = {"architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "num_hidden_layers": 4, "attention_bias": ABSENT,
    "mlp_bias": ABSENT, "pad_token_id": 0}
ERNIE = {"attention_bias": ABSENT, "mlp_bias": ABSENT, "tie_word_embeddings": ABSENT, "pad_token_id": 0}
ERNIE4_5 = ERNIE | {"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "head_dim": 32, "num_hidden_layers": 3}
ERNIE_MOE = ERNIE | {"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "use_bias": False,
    "moe_intermediate_size": 48, "moe_norm_min": 1e-12}
MINIMAX_M2 = MOE | {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "attention_bias": ABSENT,
    "head_dim": 32, "intermediate_size": 48, "scoring_func": "sigmoid", "use_routing_bias": True, "rms_norm_eps": 1e-6}
GLM_LITE = DEEPSEEK | {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "rms_norm_eps": 1e-5,
    "topk_method": "noaux_tc", "num_nextn_predict_layers": 1, "pad_token_id": 0}
MODELS |= {
    "olmo3": ("bfloat16", 1, OLMO3 | {"rope_theta": 500000.0, "rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 1.3}}),
    "olmo3-v5": ("float16", 1, OLMO3 | {"num_key_value_heads": 4, "sliding_window": 17,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": YARN | {"rope_type": "yarn", "rope_theta": 10000.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    "seed-oss": ("bfloat16", 1, SEED_OSS | {"attention_bias": True, "attention_out_bias": False, "rope_theta": 10000.0}),
    "seed-oss-v5": ("float16", 1, SEED_OSS | {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "exaone4": ("bfloat16", 1, EXAONE4 | {"sliding_window": 11, "sliding_window_pattern": "LLLG", "rope_theta": 10000.0,
        "rope_scaling": LLAMA3, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}),
    "exaone4-v5": ("float16", 1, EXAONE4 | {"sliding_window": None, "tie_word_embeddings": True, "head_dim": 32,
        "layer_types": ["full_attention"] * 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "ernie4-5": ("bfloat16", 1, ERNIE4_5 | {"use_bias": False, "rope_theta": 10000.0}),
    "ernie4-5-v5": ("float16", 1, ERNIE4_5 | {"use_bias": True, "tie_word_embeddings": False, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "ernie4-5-moe": ("bfloat16", 1, ERNIE_MOE | {"num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 3,
        "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1,
        "rope_theta": 10000.0}),
    "ernie4-5-moe-v5": ("float16", 1, ERNIE_MOE | {"num_hidden_layers": 5, "moe_num_experts": 5, "moe_k": 2,
        "moe_num_shared_experts": 0, "moe_layer_start_index": 1, "moe_layer_end_index": 3, "moe_layer_interval": 2,
        "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "minimax-m2": ("bfloat16", 1, MINIMAX_M2 | {"num_local_experts": 6, "use_qk_norm": True, "rotary_dim": 16,
        "rope_theta": 10000.0}),
    "minimax-m2-v5": ("float16", 1, MINIMAX_M2 | {"num_local_experts": 5, "num_experts_per_tok": 3, "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    "glm4-moe-lite": ("bfloat16", 1, GLM_LITE | {"q_lora_rank": 48, "n_routed_experts": 6, "n_shared_experts": 1, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.8,
        "partial_rotary_factor": 1.0, "rope_theta": 10000.0}),
    "glm4-moe-lite-v5": ("float16", 1, GLM_LITE | {"q_lora_rank": None, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 4,
        "topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.0, "rope_interleave": False,
        "mlp_layer_types": ["sparse", "dense", "sparse"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
}

# Qwen3.5 and Qwen3-Next: layers with a state, whose value heads and dimensions differ from those of keys.
HYBRID = MOE | {"num_hidden_layers": 4, "head_dim": 32, "rms_norm_eps": 1e-6, "vocab_size": 128, "num_experts_per_tok": ABSENT,
    "output_router_logits": ABSENT, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4, "pad_token_id": None}
QWEN3_5 = HYBRID | {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
IMAGES = {"model_type": "qwen3_5", "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64,
    "num_position_embeddings": 16}
MODELS |= {
    "qwen3-5": ("bfloat16", 1, QWEN3_5 | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"]}),
    "qwen3-5-v5": ("float16", 1, {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": True, "image_token_id": 5, "vision_config": IMAGES, "text_config": QWEN3_5 | {
            "architectures": ABSENT, "tie_word_embeddings": True, "attention_bias": True, "full_attention_interval": 2,
            "linear_num_value_heads": 2, "linear_conv_kernel_dim": 2, "attn_output_gate": True, "mtp_num_hidden_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                "mrope_interleaved": True, "mrope_section": [3, 3, 2]}}}),
    "qwen3-5-moe": ("bfloat16", 1, HYBRID | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 3, "intermediate_size": ABSENT, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 56, "linear_num_value_heads": 6, "linear_conv_kernel_dim": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}),
    "qwen3-next": ("bfloat16", 1, HYBRID | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
        "full_attention_interval": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True,
        "shared_expert_intermediate_size": 56, "decoder_sparse_step": 1, "mlp_only_layers": [], "partial_rotary_factor": 0.25,
        "rope_theta": 10000.0, "rope_scaling": None}),
}

ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
         "full_attention": {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.5}}
GEMMA4 = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_act": ABSENT, "mlp_bias": ABSENT,
          "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "global_head_dim": 32, "sliding_window": 11, "rms_norm_eps": 1e-6,
          "tie_word_embeddings": True, "final_logit_softcapping": 12.0, "pad_token_id": 0, "bos_token_id": 2,
          "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "attention_k_eq_v": False,
          "enable_moe_block": False, "vocab_size": 128, "vocab_size_per_layer_input": 128, "rope_parameters": ROPES}
MODELS |= {
    "gemma4-per-layer": ("bfloat16", 1, GEMMA4 | {"num_hidden_layers": 6, "hidden_size_per_layer_input": 24, "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention"]}),
    "gemma4": ("float16", 1, {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": True,
        "vision_config": None, "audio_config": None, "text_config": GEMMA4 | {"architectures": ABSENT, "num_hidden_layers": 4,
            "head_dim": 32, "global_head_dim": 48, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}}),
    "gemma4-moe": ("bfloat16", 1, GEMMA4 | {"num_hidden_layers": 3, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 48,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
}

# LFM2: short convolutions, whose feed-forward networks are narrower than the configuration says, or not.
LFM2 = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_act": ABSENT, "mlp_bias": ABSENT, "attention_bias": ABSENT,
    "rms_norm_eps": ABSENT, "norm_eps": 1e-5, "tie_word_embeddings": ABSENT, "num_hidden_layers": 4, "vocab_size": 128, "conv_bias": False,
    "conv_L_cache": 3, "pad_token_id": 0}
LFM2_MOE = LFM2 | {"architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "num_dense_layers": 1}
MODELS |= {
    "lfm2": ("bfloat16", 1, LFM2 | {"intermediate_size": ABSENT, "block_ff_dim": 140, "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 0.9, "block_multiple_of": 16, "full_attn_idxs": [1], "tie_embedding": True, "rope_theta": 10000.0}),
    "lfm2-v5": ("float16", 1, LFM2 | {"block_auto_adjust_ff_dim": False, "conv_bias": True, "conv_L_cache": 2, "tie_word_embeddings": False,
        "num_key_value_heads": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "lfm2-moe": ("bfloat16", 1, LFM2_MOE | {"num_experts": 6, "norm_topk_prob": True, "use_expert_bias": True,
        "routed_scaling_factor": 1.0, "layer_types": ["conv", "conv", "full_attention", "conv"], "rope_theta": 10000.0}),
    "lfm2-moe-v5": ("float16", 1, LFM2_MOE | {"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": False,
        "use_expert_bias": False, "routed_scaling_factor": 1.4, "conv_L_cache": 4, "num_dense_layers": 2,
        "layer_types": ["full_attention", "conv", "conv", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
}

# Granite 4: Mamba-2 layers, with experts beside a shared network, or that alone.
GRANITE_HYBRID = MOE | {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "num_hidden_layers": 4,
    "vocab_size": 128, "shared_intermediate_size": 56, "embedding_multiplier": 1.5, "residual_multiplier": 0.6,
    "attention_multiplier": 0.3, "logits_scaling": 2.0, "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_expand": 2,
    "mamba_proj_bias": False, "mamba_chunk_size": 16, "pad_token_id": 0}
MODELS |= {
    "granite-hybrid": ("bfloat16", 1, GRANITE_HYBRID | {"num_local_experts": 4, "intermediate_size": 48, "mamba_n_groups": 2,
        "mamba_d_head": 16, "mamba_d_conv": 4, "mamba_conv_bias": True, "position_embedding_type": "nope",
        "layer_types": ["mamba", "attention", "mamba", "mamba"], "rope_theta": 10000.0, "rope_scaling": None}),
    "granite-hybrid-v5": ("float16", 1, GRANITE_HYBRID | {"num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_groups": 1,
        "mamba_d_head": "auto", "mamba_expand": 3, "mamba_d_conv": 3, "mamba_conv_bias": False, "position_embedding_type": "rope",
        "tie_word_embeddings": True, "residual_multiplier": 0.8, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"]}),
}

# Nemotron-H: layers with only a mixer or only an ungated network, dense or of experts. The configuration of
# `nemotron-h` is as published, the other as version 5 writes it.
NEMOTRON_H = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_act": ABSENT, "rms_norm_eps": ABSENT,
    "layer_norm_epsilon": 1e-5, "mlp_hidden_act": "relu2", "head_dim": 16, "vocab_size": 128, "sliding_window": None,
    "mamba_hidden_act": "silu", "mamba_proj_bias": False, "use_bias": False, "chunk_size": 16, "expand": 2, "ssm_state_size": 16,
    "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 0.0001,
    "residual_in_fp32": False, "rescale_prenorm_residual": True, "hidden_dropout": 0.0, "num_logits_to_keep": 1, "pad_token_id": 0}
MODELS |= {
    "nemotron-h": ("bfloat16", 1, NEMOTRON_H | {"hybrid_override_pattern": "M-M*-M-", "num_hidden_layers": 7, "mamba_num_heads": 8,
        "mamba_head_dim": 12, "n_groups": 2, "conv_kernel": 4, "use_conv_bias": True}),
    "nemotron-h-moe": ("bfloat16", 1, NEMOTRON_H | {"num_hidden_layers": ABSENT, "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 3,
        "conv_kernel": 3, "use_conv_bias": False, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe",
            "linear_attention", "mlp"], "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 56, "n_group": 3, "topk_group": 2, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "moe_latent_size": None, "num_nextn_predict_layers": 0}),
    "nemotron-h-latent": ("float16", 1, NEMOTRON_H | {"hybrid_override_pattern": "ME*ME", "num_hidden_layers": 5, "mamba_num_heads": 4,
        "mamba_head_dim": 24, "n_groups": 1, "conv_kernel": 4, "use_conv_bias": True, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 72, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": False, "routed_scaling_factor": 1.2, "moe_latent_size": 40}),
}

# Kimi Linear: published spelling and transformers' own, whose states have other heads than attention.
KIMI_LINEAR = MOE | {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "max_position_embeddings": ABSENT,
    "model_max_length": 256, "num_experts_per_tok": ABSENT, "num_experts_per_token": 2, "num_key_value_heads": 4,
    "num_hidden_layers": 4, "attention_bias": ABSENT, "vocab_size": 128, "kv_lora_rank": 40, "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16, "v_head_dim": 20, "moe_intermediate_size": 48, "pad_token_id": None}
MODELS |= {
    "kimi-linear": ("bfloat16", 1, KIMI_LINEAR | {"q_lora_rank": None, "head_dim": 16, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1, 2, 4], "head_dim": 12, "num_heads": 4,
            "short_conv_kernel_size": 4}, "mla_use_nope": True, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1, "num_experts": 6, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "rope_scaling": None,
        "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "topk_group": 1, "use_grouped_topk": True}),
    "kimi-linear-v5": ("float16", 1, KIMI_LINEAR | {"q_lora_rank": 48, "num_experts": 8, "num_expert_group": 4, "topk_group": 2,
        "num_shared_experts": 2, "moe_renormalize": False, "routed_scaling_factor": 1.3, "linear_head_dim": 20, "linear_num_heads": 3,
        "linear_conv_kernel_dim": 3, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"]}),
}

# Text models of models that also take images: Kimi K2.5, whose layers are DeepSeek-V3's, and Ministral 3.
# Both scale queries or rotations within the compared positions. Tokens of images are outside the vocabulary,
# because transformers embeds them otherwise.
NO_IMAGES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14}
MINISTRAL3 = {"model_type": "ministral3", "attention_bias": ABSENT, "mlp_bias": ABSENT, "head_dim": 32, "num_hidden_layers": 3,
    "vocab_size": 128, "pad_token_id": 0}
BETA = {"rope_theta": 10000.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.4}
MODELS |= {
    "kimi-k2": ("bfloat16", 1, {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "image_token_id": 1000,
        "tie_word_embeddings": False, "projection_hidden_size": 16,
        "vision_config": NO_IMAGES | {"model_type": "kimi_k25_vision", "pos_emb_height": 4, "pos_emb_width": 4},
        "text_config": V3 | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "q_lora_rank": 48, "vocab_size": 128,
            "n_routed_experts": 6, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            "routed_scaling_factor": 2.827, "num_nextn_predict_layers": 0, "rope_theta": 50000.0,
            "rope_scaling": YARN | {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0}}}),
    "ministral3": ("bfloat16", 1, {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "tie_word_embeddings": False, "image_token_index": 1000, "vision_config": NO_IMAGES | {"model_type": "pixtral", "head_dim": 8,
            "image_size": 28}, "text_config": MINISTRAL3 | {"architectures": ABSENT, "sliding_window": None, "rope_parameters": BETA | {
                "type": "yarn", "rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                "mscale_all_dim": 1.0}}}),
    "ministral3-v5": ("float16", 1, MINISTRAL3 | {"architectures": ["Ministral3ForCausalLM"], "tie_word_embeddings": True,
        "sliding_window": 19, "rope_parameters": BETA | {"rope_type": "default", "original_max_position_embeddings": 24}}),
}
# DeepSeek-V3.2, whose attention reads all positions: no compared sequence is longer than `index_topk`.
V32 = V3 | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "q_lora_rank": 48, "vocab_size": 128,
    "index_head_dim": 24, "index_n_heads": 3, "index_topk": 128, "n_shared_experts": 1, "pad_token_id": None}
MODELS |= {
    "deepseek-v32": ("bfloat16", 1, V32 | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "rope_theta": 10000.0, "rope_scaling": MSCALE | {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0}}),
}
WITH_IMAGES = ("kimi_k25", "mistral3")

# Models whose checkpoints have a tensor per expert, with these names of block, gate, up and down; other
# models have the fused tensors of version 5.
APART = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2"), "qwen3-moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
         "qwen2-moe": ("mlp", "gate_proj", "up_proj", "down_proj"), "glm4-moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
         "deepseek-v2-lite": ("mlp", "gate_proj", "up_proj", "down_proj"),
         "deepseek-v3": ("mlp", "gate_proj", "up_proj", "down_proj"),
         "ernie4-5-moe": ("mlp", "gate_proj", "up_proj", "down_proj"), "minimax-m2": ("block_sparse_moe", "w1", "w3", "w2"),
         "glm4-moe-lite": ("mlp", "gate_proj", "up_proj", "down_proj"),
         "qwen3-next": ("mlp", "gate_proj", "up_proj", "down_proj"), "lfm2-moe": ("feed_forward", "w1", "w3", "w2"),
         "nemotron-h-moe": ("mixer", None, "up_proj", "down_proj"), "nemotron-h-latent": ("mixer", None, "up_proj", "down_proj"),
         "deepseek-v32": ("mlp", "gate_proj", "up_proj", "down_proj"),
         "kimi-k2": ("mlp", "gate_proj", "up_proj", "down_proj"),
         "kimi-linear": ("block_sparse_moe", "w1", "w3", "w2"), "kimi-linear-v5": ("block_sparse_moe", "w1", "w3", "w2")}

# Replacements in tensor names, for models whose publisher's names differ from those of version 5.
RENAMED = {"granite-moe": {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight",
                           "router.weight": "router.layer.weight"},
           "granite-hybrid": {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight",
                              "router.weight": "router.layer.weight"},
           "ernie4-5-moe": {"mlp.gate.moe_statics.": "mlp.moe_statics."},
           "minimax-m2": {".mlp.e_score_": ".block_sparse_moe.e_score_"},
           "qwen3-5-v5": {"model.": "model.language_model."},
           "nemotron-h": {"model.": "backbone."}, "nemotron-h-moe": {"model.": "backbone."}, "nemotron-h-latent": {"model.": "backbone."},
           "kimi-k2": {"model.language_model.": "language_model.model.", "lm_head": "language_model.lm_head"},
           "ministral3": {"model.language_model.": "language_model.model.", "lm_head": "language_model.lm_head"},
           "kimi-linear": {".forget_gate.": "."}, "kimi-linear-v5": {".forget_gate.": "."}}

# Ends of the tensors that these models' publishers keep in 32 bits.
IN_32_BITS = {"ernie4-5-moe": ("mlp.gate.weight", "e_score_correction_bias")}


def renamed(name: str, sources: dict) -> dict:
    """The tensors under the names of RENAMED."""
    def other(key):
        for part, to in RENAMED[name].items():
            key = key.replace(part, to)
        return key
    return {other(key): source for key, source in sources.items()}


def apart(name: str, sources: dict) -> dict:
    """The tensors under the names of APART."""
    block, gate, up, down = APART[name]
    split = {}
    for key, (shape, source) in sources.items():
        network = f".{block}" if block in ("feed_forward", "mixer") else ".mlp"
        prefix, _, kind = key.partition(f"{network}.experts.")
        if not kind:
            split[key.replace(f"{network}.gate.", f".{block}.gate.")] = shape, source
            continue
        parts = {"gate_up_proj": (gate, up), "up_proj": (up,)}.get(kind, (down,))
        for expert in range(shape[0]):
            for part in parts:
                split[f"{prefix}.{block}.experts.{expert}.{part}.weight"] = (shape[1] // len(parts), shape[2]), source
    return split


def of_kimi(name: str, sources: dict) -> dict:
    """The tensors with a convolution each of queries, keys and values. Publishers keep the networks of dense
    layers apart from those with experts; transformers saves all under one name."""
    split = {}
    for key, (shape, source) in sources.items():
        for part in "qkv" if ".conv1d." in key else [None]:
            key_of = key if part is None else key.replace(".conv1d.", f".{part}_conv1d.")
            if name.endswith("-v5") or ".mlp.shared" in key:
                key_of = key_of.replace(".mlp.", ".block_sparse_moe.")
            split[key_of] = (shape if part is None else (shape[0] // 3, *shape[1:])), source
    return split


def mxfp4(sources: dict) -> dict:
    """The tensors with the experts' matrices as random codes and powers of two in groups of 32 inputs."""
    coded = {}
    for key, (shape, source) in sources.items():
        if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            coded[key] = shape, source
            continue
        experts, inputs, outputs = shape
        coded[f"{key}_blocks"] = (experts, outputs, inputs // 32, 16), {"bytes": ["ff", "00"]}
        coded[f"{key}_scales"] = (experts, outputs, inputs // 32), {"uniform": [121, 125]}
    return coded


def without_codes(path: pathlib.Path):
    """The model with its experts as transformers dequantises them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    config = AutoConfig.from_pretrained(path)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    stored = load_file(str(path / "model.safetensors"))
    for key in [key for key in stored if key.endswith("_blocks")]:
        base = key.removesuffix("_blocks")
        stored[base] = convert_moe_packed_tensors(stored.pop(key), stored.pop(f"{base}_scales"))
    model.load_state_dict({key: tensor.float() for key, tensor in stored.items()})
    return model


def source_of_gemma4(name: str, shape) -> dict | None:
    """The same for what only Gemma 4 has: its norms add nothing to their weights, its router reads rows of
    length 1, and a factor ends each layer."""
    if name.endswith(("layer_scalar", "router.scale", "router.per_expert_scale")):
        return {"uniform": [0.5, 1.5]}
    if "norm" in name and "post_" in name:
        return {"uniform": [4, 12]}
    if "router.proj" in name:
        return {"normal": 3.0}
    return None


def source_of(name: str, shape, is_gemma: bool, is_hybrid: bool) -> dict:
    """How to draw a weight, with a scale that suits its role. Gemma adds 1 to its norm weights. Its layers
    get large outputs; otherwise the scaled embedding and the tied head would repeat one token. Hybrids add 1
    to all but a state's."""
    normal = lambda deviation: {"normal": round(deviation, 5)}
    if name.endswith("A_log"):
        return {"uniform": [-4.0, 0.5]}
    if is_hybrid and "norm" in name and "linear_attn" not in name:
        return {"uniform": [0.5, 1.5] if ("q_norm" in name or "k_norm" in name) else [-0.5, 0.5]}
    if name.endswith("norm.bias"):
        return normal(0.1)
    if "norm" in name:
        return {"uniform": [0.5, 1.5] if not is_gemma else [3, 11] if "post_" in name else [-0.5, 0.5]}
    if "moe_statics" in name:
        return normal(0.1)  # it is added to probabilities
    if name.endswith("bias"):
        return normal(0.5)
    if "embed_tokens" in name or "embeddings" in name:
        return normal(0.35)  # also the head where it is tied: 0.35 * sqrt(64) is a logit's spread
    scores = 3.0 if is_gemma else 1.6  # as large as Gemma's softcap
    if name.endswith(("mlp.gate.weight", "mlp.gate_weight", "router.weight", "feed_forward.gate.weight", "mixer.gate.weight")):
        return normal(3.0 / shape[-1] ** 0.5)  # experts of clearly different weight
    gain = scores if ("q_proj" in name or "k_proj" in name or "qkv_proj" in name
                       or "q_b_proj" in name or "kv_a_proj" in name) else 3.0 if "lm_head" in name else 1.3
    return normal(gain / shape[-1] ** 0.5)


STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def draw(seed: int, name: str, dtype: str, shape, source: dict) -> torch.Tensor:
    """A weight in `dtype`; codes are bytes."""
    is_code = name.endswith(("_blocks", "_scales"))
    content = weights.draw(seed, name, "U8" if is_code else STORED[dtype], shape, source)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8 if is_code else getattr(torch, dtype)).reshape(tuple(shape))


def class_of(config: dict):
    return AutoModelForImageTextToText if config["model_type"] in WITH_IMAGES else AutoModelForCausalLM


def write_model(path: pathlib.Path, config: dict, dtype: str, files: int, seed: int) -> dict:
    """Writes config.json and the weights, in one safetensors file or `files` of them with an index; returns
    how each tensor is drawn."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    plain = AutoConfig.from_pretrained(path)
    if hasattr(plain, "quantization_config"):
        del plain.quantization_config
    empty = class_of(config).from_config(plain)
    sources = {}
    is_gemma4 = config["model_type"].startswith("gemma4")
    is_gemma = config["model_type"].startswith("gemma") and not is_gemma4
    is_hybrid = config["model_type"].startswith(("qwen3_5", "qwen3_next"))
    for name, like in sorted(empty.state_dict().items()):
        if "vision" in name or "multi_modal" in name or "mm_projector" in name:
            continue
        if not (name == "lm_head.weight" and empty.config.tie_word_embeddings):
            of_gemma4 = source_of_gemma4(name, like.shape) if is_gemma4 else None
            sources[name] = tuple(like.shape), of_gemma4 or source_of(name, like.shape, is_gemma, is_hybrid)
    if path.name in RENAMED:
        sources = renamed(path.name, sources)
    if "quantization_config" in config:
        sources = mxfp4(sources)
    if path.name in APART:
        sources = apart(path.name, sources)
    if config["model_type"] == "kimi_linear":
        sources = of_kimi(path.name, sources)
    in_32_bits = IN_32_BITS.get(path.name, ())
    tensors = {name: draw(seed, name, "float32" if name.endswith(in_32_bits) else dtype, *of) for name, of in sources.items()}
    if files == 1:
        save(tensors, path / "model.safetensors")
    else:
        weight_map = {name: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(tensors)}
        for file in sorted(set(weight_map.values())):
            save({name: t for name, t in tensors.items() if weight_map[name] == file}, path / file)
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return {name: source for name, (_, source) in sources.items()}


def save(tensors, path: pathlib.Path):
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)


@torch.no_grad()
def compute(path: pathlib.Path, seed: int, vocab: int):
    """Runs the model in float32: (prompt, its logits, greedy tokens, their logits, attention entropy). None
    if the seed will not do."""
    if "quantization_config" in json.loads((path / "config.json").read_text()):
        model = without_codes(path)
    else:
        config = json.loads((path / "config.json").read_text())
        model = class_of(config).from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    assert next(model.parameters()).dtype == torch.float32
    prompt = torch.randint(2, vocab, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(seed + 1000))
    out = model(prompt, output_attentions=True)
    # Entropy of each query's attention relative to uniform attention: 1 is uniform.
    entropy = torch.stack([-(a * a.clamp_min(1e-9).log()).sum(-1)[0, :, 1:].mean() for a in out.attentions]).mean()
    flat = torch.arange(2, PROMPT_TOKENS + 1).float().log().mean()
    run = model.generate(prompt, max_new_tokens=GREEDY_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0,
                         return_dict_in_generate=True, output_logits=True)
    steps, greedy = torch.cat(run.logits), run.sequences[0, PROMPT_TOKENS:]
    if margin_of(steps) < MIN_MARGIN or len(set(greedy.tolist())) < MIN_DISTINCT or out.logits[0].std() <= 1:
        return None
    whole = model(run.sequences[:, :-1]).logits[0]  # the same without a KV cache
    # A choice of experts that rounding changes makes the seed unusable, and so does a network that amplifies
    # rounding.
    model.set_experts_implementation("eager")
    exact = model.double()(run.sequences[:, :-1]).logits[0]
    if ((whole[PROMPT_TOKENS - 1:] - steps).abs().max() >= 5e-5
            or (whole - exact).abs().max() >= ROUNDING.get(path.name, MAX_ROUNDING)):
        return None
    if path.name in IN_BF16 + EXPERTS_IN_BF16:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="eager").eval()
        scores = [logits[0, :-1].float().log_softmax(-1).gather(1, prompt[0, 1:, None]) for logits in (out.logits, model(prompt).logits)]
        off = (scores[0] - scores[1]).abs()
        if path.name in IN_BF16 and off.mean() >= MAX_IN_BF16:
            return None
        if path.name in EXPERTS_IN_BF16 and off[PROMPT_POSITIONS[:-1]].max() >= MAX_OF_EXPERTS:
            return None
    return prompt[0], out.logits[0], greedy, steps, (entropy / flat).item()


def margin_of(logits) -> float:
    """By how much the best token beats the second at least."""
    best = logits.topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()


def make_one(name: str, dtype: str, files: int, over: dict):
    present = lambda config: {key: value for key, value in config.items() if value is not ABSENT}
    text = present(BASE | over.get("text_config", over))
    config = over | {"text_config": text} if "text_config" in over else text
    path = HERE / "models" / name
    for seed in range(1000):
        drawn = write_model(path, config, dtype, files, seed)
        if found := compute(path, seed, text["vocab_size"]):
            break
    else:
        raise RuntimeError(f"{name}: no seed will do")
    prompt, prompt_logits, greedy, greedy_logits, entropy = found
    margin, spread = margin_of(greedy_logits), prompt_logits.std().item()
    recipes = [weights.of_safetensors(file, drawn)[0] for file in sorted(path.glob("model*.safetensors"))]
    weights.write(path, seed, recipes, b"")
    kept = {"prompt_logits": prompt_logits[PROMPT_POSITIONS], "greedy_logits": greedy_logits[GREEDY_STEPS]}
    save(kept, path / "goldens.safetensors")
    top = greedy_logits.topk(5)
    goldens = {
        "prompt": prompt.tolist(), "prompt_positions": PROMPT_POSITIONS, "greedy": greedy.tolist(),
        "greedy_steps": GREEDY_STEPS, "greedy_top5": [
            {"ids": ids, "logits": [round(v, 5) for v in values]}
            for ids, values in zip(top.indices.tolist(), top.values.tolist())],
        "min_margin": round(margin, 5), "logits_std": round(spread, 4), "seed": seed}
    (path / "goldens.json").write_text(one_line_per_key(goldens))
    kib = sum(f.stat().st_size for f in path.iterdir()) / 1024
    print(f"{name}: seed {seed}, margin {margin:.4f}, logits std {spread:.2f}, attention entropy {entropy:.2f} of flat, "
          f"{len(set(greedy.tolist()))} distinct tokens, {kib:.0f} KiB")


def one_line_per_key(value: dict) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n}\n"


def quiet():
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def make(only=()):
    """Makes all models, or the named ones."""
    quiet()
    for name, (dtype, files, over) in MODELS.items():
        if not only or name in only:
            make_one(name, dtype, files, over)


SKEIN_7M = HERE.parents[1] / "models" / "skein-7m"
PROMPTS = {
    "code": "<|bos|>def read_file(path):\n",
    "class": "<|bos|>import unittest\n\nclass TestQueue(unittest.TestCase):\n    def setUp(self):\n",
    "prose": "<|bos|>The import statement combines two operations; it",
    "chat": "<|bos|><|user|>What does os.path.join do?<|end|><|assistant|>",
    "hello": "<|bos|><|user|>Hello<|end|><|assistant|>",
    "exercise": "<|bos|><|system|>You are a helpful coding assistant.<|end|><|user|>Write a function that adds two numbers.<|end|><|assistant|>",
}


@torch.no_grad()
def make_skein_7m():
    """Greedy texts of the shipped model, each cut before its first near tie. Stop tokens are included."""
    quiet()
    tokenizer = Tokenizer.from_file(str(SKEIN_7M / "tokenizer.json"))
    subprocess.run([sys.executable, SKEIN_7M / "packed.py", "unpack"], check=True)
    model = AutoModelForCausalLM.from_pretrained(SKEIN_7M, dtype=torch.float32, attn_implementation="eager").eval()
    cases = []
    for name, text in PROMPTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        run = model.generate(torch.tensor([ids]), max_new_tokens=96, do_sample=False, return_dict_in_generate=True, output_logits=True)
        best = torch.cat(run.logits).topk(2).values
        ties = (best[:, 0] - best[:, 1] < MIN_MARGIN).nonzero()
        count = int(ties[0]) if len(ties) else len(best)
        greedy = run.sequences[0, len(ids):][:count].tolist()
        cases.append({"name": name, "prompt": text, "ids": ids, "greedy": greedy, "text": tokenizer.decode(greedy),
                      "finished": bool(greedy) and greedy[-1] in model.generation_config.eos_token_id,
                      "first_logits_top5": dict(zip(("ids", "logits"), (t.tolist() for t in run.logits[0][0].topk(5)[::-1])))})
        print(f"skein-7m.json: {name}: {count} tokens, finished {cases[-1]['finished']}")
    (HERE / "skein-7m.json").write_text(json.dumps({"model": "models/skein-7m", "cases": cases}, indent=1) + "\n")
