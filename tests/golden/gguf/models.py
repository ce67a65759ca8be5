"""Makes GGUF files of the golden models like llama.cpp's converter, and one of mixed quantised types.

Usage: models.py   (pip install gguf==0.19.0 safetensors torch transformers)

- models/NAME has the weights of ../models/NAME in their type, so the logits in its golden files hold.
- models/mixed is a Llama of random quantised blocks, split in two files; mixed.json has the logits that
  transformers computes in float32 with the weights as the `gguf` package dequantises them, and those with
  activations rounded to 8 bits.
- models/latent has latent-q8.gguf, a model with latent attention in Q8_0, latent-old.gguf, the same in the
  form of old converters, and latent-f32.gguf, the same values in F32.
- models/chat has the shipped model's vocabulary and template and a small random network, so it can be served.

The package writes whole files. What is kept of them is a recipe (`../weights.py`): what the package wrote
itself is literal, the weights of ../models/NAME are views of its files, and random blocks are drawn.
"""

import hashlib
import json
import pathlib
import re
import shutil
import sys

import gguf
import numpy as np
from safetensors import safe_open

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import weights
from rounding import in_8_bits

GOLDEN = HERE.parent / "models"
OUT = HERE / "models"
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "phi3": "phi3", "granite": "granite", "olmo2": "olmo2", "olmoe": "olmoe",
    "qwen2_moe": "qwen2moe", "smollm3": "smollm3", "gpt_oss": "gpt-oss", "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2", "glm": "chatglm", "glm4": "glm4", "glm4_moe": "glm4moe", "granitemoe": "granitemoe",
    "starcoder2": "starcoder2", "cohere": "command-r", "cohere2": "cohere2", "olmo3": "olmo2", "seed_oss": "seed_oss",
    "exaone4": "exaone4", "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe", "minimax_m2": "minimax-m2",
    "glm4_moe_lite": "deepseek2", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next",
    "lfm2": "lfm2", "lfm2_moe": "lfm2moe", "nemotron_h": "nemotron_h", "gemma4": "gemma4", "gemma4_text": "gemma4",
    "granitemoehybrid": "granitehybrid", "kimi_linear": "kimi-linear", "ministral3": "mistral3",
}
NAMES = [
    "llama-gqa", "llama3-rope", "mistral", "mixtral", "qwen2", "qwen2-tied-v5", "qwen3", "gemma2", "gemma3", "phi3-long",
    "granite", "olmo2", "olmoe", "qwen2-moe", "smollm3", "gpt-oss", "gpt-oss-mxfp4", "deepseek-v2", "deepseek-v2-lite",
    "deepseek-v3", "glm", "glm4-v5", "glm4-moe", "granite-moe", "starcoder2", "cohere", "cohere2-v5",
    "olmo3", "seed-oss", "exaone4", "ernie4-5", "ernie4-5-moe", "minimax-m2", "glm4-moe-lite",
    "qwen3-5", "qwen3-5-moe", "qwen3-next", "lfm2", "lfm2-moe", "gemma4", "gemma4-moe", "gemma4-per-layer", "granite-hybrid",
    "nemotron-h", "nemotron-h-latent", "kimi-linear", "ministral3",
]
# Their queries and keys are permuted.
ROTATES_ADJACENT = ["llama", "mistral3", "granite", "granitemoe", "granitehybrid", "smollm3", "nemotron_h", "nemotron_h_moe"]
FACTORS = {
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
}
WINDOWED = ("gemma2", "gemma3_text", "phi3", "gpt_oss", "starcoder2", "cohere2", "olmo3", "exaone4")
Q = gguf.GGMLQuantizationType


def read_tensors(directory: pathlib.Path):
    """Yields (name, dtype, values as float32)."""
    import torch

    for path in sorted(directory.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                yield name, str(tensor.dtype).removeprefix("torch."), (tensor if tensor.dtype == torch.uint8 else tensor.to(torch.float32)).numpy()


FILE = 1 << 40  # more than a file has bytes: an address is a file's number and a place in it


def read_addresses(directory: pathlib.Path):
    """Yields the same with addresses instead of values."""
    dtypes = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "U8": "uint8"}
    for number, path in enumerate(sorted(directory.glob("model*.safetensors"))):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        table = json.loads(content[8:start])
        with safe_open(path, "np") as file:
            for name in file.keys():
                entry = table[name]
                size, shape = weights.BYTES[entry["dtype"]], entry["shape"]
                addresses = number * FILE + start + entry["data_offsets"][0] + size * np.arange(np.prod(shape, dtype=int))
                yield name, dtypes[entry["dtype"]], addresses.reshape(shape)


def steps_of(addresses: np.ndarray):
    """Shape and steps of a view that has these addresses in order, or None."""
    shape, steps = [], []
    while len(addresses) > 1:
        differences = np.diff(addresses)
        breaks = np.flatnonzero(differences != differences[0]) + 1
        count = int(np.gcd.reduce([*breaks, len(addresses)]))
        if count == 1 or differences[0] < 0:
            return None
        shape.insert(0, count)
        steps.insert(0, int(differences[0]))
        addresses = addresses[::count]
    return shape, steps


def views_of(addresses: np.ndarray, dtype: str, files: list):
    """Pieces of a recipe that copy the elements at these addresses, or None."""
    number, found = int(addresses.flat[0] // FILE), steps_of(addresses.reshape(-1))
    if found and (addresses // FILE == number).all():
        view = {"file": files[number], "at": int(addresses.flat[0] % FILE), "steps": found[1]}
        return [{"dtype": dtype, "shape": found[0], "from": {"view": view}}]
    if addresses.ndim == 1:
        return None
    parts, first = [], 0
    while first < len(addresses):
        # As many rows as one view has.
        ends = range(len(addresses), first + 1, -1)
        last = next((end for end in ends if steps_of(addresses[first:end].reshape(-1))), first + 1)
        parts.append(views_of(addresses[first:last] if last > first + 1 else addresses[first], dtype, files))
        first = last
    return None if None in parts else sum(parts, [])


def write_recipe(directory: pathlib.Path, known: dict, seed: int = 0) -> None:
    """Replaces the GGUF files in `directory` by their recipe. `known` has the pieces of tensors that are not
    literal, by file and tensor."""
    files, literals = [], b""
    for path in sorted(directory.glob("*.gguf"), key=lambda path: (path.name != "latent-q8.gguf", path.name)):
        content, at, pieces = path.read_bytes(), 0, []

        def literal(end: int) -> None:
            nonlocal at, literals
            if end > at:
                pieces.append({"dtype": "U8", "shape": [end - at], "from": "literal"})
                literals += content[at:end]
                at = end

        for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda tensor: tensor.data_offset):
            found = known.get((path.name, tensor.name))
            if found:
                literal(int(tensor.data_offset))
                pieces += found
                at += int(tensor.n_bytes)
        literal(len(content))
        files.append({"name": path.name, "format": "gguf", "sha256": hashlib.sha256(content).hexdigest(), "pieces": pieces})
    weights.write(directory, seed, files, literals)


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a Llama's queries or keys in the converter's order: rotated pairs are adjacent."""
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def llama3_factors(config: dict, scaling: dict) -> np.ndarray:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta, factors = config["rope_theta"], []
    old, low, high = scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    for pair in range(head_dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * pair / head_dim)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(scaling["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def attending(config: dict) -> list[bool]:
    """Which layers of LFM2, Granite 4 and Kimi Linear attend."""
    if "linear_attn_config" in config:
        return [layer + 1 in config["linear_attn_config"]["full_attn_layers"] for layer in range(config["num_hidden_layers"])]
    types = config.get("layer_types")
    return [types[layer] not in ("conv", "mamba") if types else layer in config["full_attn_idxs"] for layer in range(config["num_hidden_layers"])]


def architecture_of(config: dict) -> str:
    """Nemotron-H with experts has an architecture of its own."""
    is_mixture = config["model_type"] == "nemotron_h" and "num_experts_per_tok" in config
    return "nemotron_h_moe" if is_mixture else ARCHITECTURES[config["model_type"]]


def write_layers(writer: gguf.GGUFWriter, config: dict) -> None:
    """Which layers of Nemotron-H attend or are a network, its states, and its experts."""
    letters, is_mixture = config["hybrid_override_pattern"], "num_experts_per_tok" in config
    network, inner = ("E", config["moe_intermediate_size"]) if is_mixture else ("-", config["intermediate_size"])
    writer.add_feed_forward_length([inner if letter == network else 0 for letter in letters])
    writer.add_head_count_kv([config["num_key_value_heads"] if letter == "*" else 0 for letter in letters])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])
    writer.add_rope_scaling_finetuned(False)
    if is_mixture:
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    if config.get("moe_latent_size"):
        writer.add_moe_latent_size(config["moe_latent_size"])


STATE_SPACE = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias", "in_proj.weight": "ssm_in.weight", "norm.weight": "ssm_norm.weight",
               "out_proj.weight": "ssm_out.weight", "conv1d.weight": "ssm_conv1d.weight", "conv1d.bias": "ssm_conv1d.bias"}


def of_state_space(config: dict, tensor: str, dtype: str, values: np.ndarray):
    """(name, dtype, values) of a tensor of Mamba-2 as llama.cpp's converter writes it, or None."""
    layer, _, name = re.sub(r"^\w+\.layers\.", "", tensor).partition("." + ("mamba" if "mamba_n_groups" in config else "mixer") + ".")
    if name not in STATE_SPACE:
        return None
    is_number, of_matrix = values.dtype.kind == "f", name in ("in_proj.weight", "out_proj.weight", "conv1d.bias", "dt_bias")
    if name == "norm.weight":
        values = values.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
    elif name in ("A_log", "D", "conv1d.weight"):
        values = values.reshape(len(values), -1)
    values = -np.exp(values) if name == "A_log" and is_number else values
    return f"blk.{layer}.{STATE_SPACE[name]}", dtype if of_matrix else "float32", values


def write_convolutions(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    if "block_ff_dim" in config:
        size, multiple = int(config["block_ffn_dim_multiplier"] * int(2 * config["block_ff_dim"] / 3)), config["block_multiple_of"]
        writer.add_feed_forward_length(-(-size // multiple) * multiple)
    if "num_dense_layers" in config:
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def write_state_space(writer: gguf.GGUFWriter, config: dict) -> None:
    """Sizes of Granite's layers with a state. Its other layers do not rotate, for which there is a flag."""
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_rope_scaling_finetuned(False)


def write_gemma4(writer: gguf.GGUFWriter, config: dict) -> None:
    """What differs by layer, and which pairs of heads rotate in layers without a window."""
    ropes, layers, shared = config["rope_parameters"], config["num_hidden_layers"], config["num_kv_shared_layers"]
    is_local = [kind == "sliding_attention" for kind in config["layer_types"]]
    head_dim, local = config["global_head_dim"], config["head_dim"]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_sliding_window_pattern(is_local)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_key_length_swa(local)
    writer.add_value_length_swa(local)
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config["use_double_wide_mlp"]:
        writer.add_feed_forward_length([config["intermediate_size"] * (1 if layer < layers - shared else 2) for layer in range(layers)])
    if "num_global_key_value_heads" in config:
        heads = config["num_global_key_value_heads"], config["num_key_value_heads"]
        writer.add_head_count_kv([heads[kind] for kind in is_local])
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_dimension_count_swa(local)
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    rotated = int(head_dim * ropes["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (head_dim // 2 - rotated), np.float32))


def write_sizes(writer: gguf.GGUFWriter, config: dict) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config.get("max_position_embeddings") or config["model_max_length"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    if "intermediate_size" in config and "hybrid_override_pattern" not in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    is_latent = "kv_lora_rank" in config
    kv_heads = 1 if is_latent else config.get("num_key_value_heads", heads)
    is_hybrid = any(field in config for field in ("conv_L_cache", "mamba_n_heads", "linear_attn_config"))
    if "hybrid_override_pattern" not in config:
        writer.add_head_count_kv([kv_heads if attends else 0 for attends in attending(config)] if is_hybrid else kv_heads)
    rms_eps = config.get("rms_norm_eps") or config.get("norm_eps") or config.get("layer_norm_epsilon")
    if rms_eps:
        writer.add_layer_norm_rms_eps(rms_eps)
    if "layer_norm_epsilon" in config or not rms_eps:
        writer.add_layer_norm_eps(config.get("layer_norm_epsilon") or config.get("layer_norm_eps") or config["norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
    parameters = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(config.get("rope_theta", parameters.get("rope_theta", 10000.0)))
    partial = config.get("partial_rotary_factor", parameters.get("partial_rotary_factor", 1.0))
    partial = config["rotary_dim"] / head_dim if "rotary_dim" in config else partial
    writer.add_rope_dimension_count(config["qk_rope_head_dim"] if is_latent else int(head_dim * partial))
    if config.get("head_dim") and not is_latent:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)


def write_rest(writer: gguf.GGUFWriter, config: dict, is_old: bool = False) -> None:
    kind = config["model_type"]
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or config.get("moe_num_experts")
    if experts:
        writer.add_expert_count(experts)
        used = (config.get(field) for field in ("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts"))
        writer.add_expert_used_count(next(filter(None, used)))
    if "n_routed_experts" in config:
        write_grouped(writer, config)
    if "kv_lora_rank" in config:
        write_latent(writer, config, is_old)
    if kind == "kimi_linear":
        write_kimi(writer, config)
    if kind == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        limits = [config["swiglu_limit"]] * config["num_hidden_layers"]
        writer.add_array("gpt-oss.swiglu_clamp_exp", limits)  # not the default
    if kind in ("cohere", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind == "cohere2":
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config["layer_types"]])
    if "linear_num_key_heads" in config:
        write_states(writer, config)
    if "hybrid_override_pattern" in config:
        write_layers(writer, config)
    if "conv_L_cache" in config:
        write_convolutions(writer, config)
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if kind in ("olmo3", "exaone4"):
        every_fourth = ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(config["num_hidden_layers"])]
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config.get("layer_types", every_fourth)])
    if kind == "ernie4_5_moe":
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        # llama.cpp's converter writes what is twice an expert's width in the published model.
        writer.add_expert_shared_feed_forward_length(config["moe_num_shared_experts"] * config["moe_intermediate_size"])
    if kind == "minimax_m2":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind.startswith("granite"):
        for key, field in FACTORS.items():
            writer.add_float32(f"{ARCHITECTURES[kind]}.{key}", config[field])
    if kind == "granitemoehybrid":
        write_state_space(writer, config)
    if kind == "gemma4_text":
        write_gemma4(writer, config)
    if config.get("sliding_window") and kind in WINDOWED:
        writer.add_sliding_window(config["sliding_window"])
    if kind in ("gemma2", "gemma3_text"):
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)  # not the default
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if kind == "gemma3_text":
        writer.add_float32("gemma3.rope.freq_base_swa", config["rope_local_base_freq"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
    scaling = config.get("rope_scaling") or {}
    if "yarn" in (scaling.get("rope_type"), scaling.get("type")):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
        if "attention_factor" in scaling:
            writer.add_rope_scaling_yarn_attn_factor(scaling["attention_factor"])
        if "mscale_all_dim" in scaling:
            writer.add_rope_scaling_yarn_log_mul((1.0 if kind == "ministral3" else 0.1) * scaling["mscale_all_dim"])
            if scaling["mscale"] != scaling["mscale_all_dim"]:  # as in no published model
                of_queries, of_scores = (
                    1 + 0.1 * scaling[field] * np.log(scaling["factor"]) for field in ("mscale", "mscale_all_dim"))
                writer.add_rope_scaling_attn_factors(float(of_queries / of_scores))
    if "llama_4_scaling_beta" in scaling:
        writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])
    if scaling.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config, scaling))
    if scaling.get("rope_type") == "longrope":
        old = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(old)
        writer.add_rope_scaling_attn_factors(
            float(np.sqrt(1 + np.log(config["max_position_embeddings"] / old) / np.log(old))))
        writer.add_tensor("rope_factors_long.weight", np.array(scaling["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(scaling["short_factor"], np.float32))


def write_states(writer: gguf.GGUFWriter, config: dict) -> None:
    """Sizes of layers with a state, in the fields of state space models."""
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    if config["model_type"].startswith("qwen3_5"):
        writer.add_rope_dimension_sections([2, 1, 1, 0])  # text has equal positions in all of them
    types = config.get("layer_types")
    writer.add_full_attention_interval(types.index("full_attention") + 1 if types else config["full_attention_interval"])


def of_state(config: dict, tensor: str, values: np.ndarray):
    """Yields (name, values) of a tensor of a layer with a state as llama.cpp's converter writes it."""
    heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys, layer = config["linear_key_head_dim"], tensor.split(".")[2]
    values_of, is_number = config["linear_value_head_dim"] * value_heads // heads, values.dtype.kind == "f"

    def tiled(part: np.ndarray, axis: int = 0) -> np.ndarray:
        """Value heads in the order in which consecutive ones have different key heads."""
        if config["model_type"] == "qwen3_next":
            return part
        part = np.moveaxis(part, axis, 0)
        by_head = part.reshape(heads, value_heads // heads, -1, *part.shape[1:])
        return np.moveaxis(by_head.swapaxes(0, 1).reshape(part.shape), 0, axis)

    name = tensor.split("linear_attn.")[1]
    if name == "in_proj_qkvz.weight":
        parts = np.split(values.reshape(heads, -1, values.shape[-1]), np.cumsum([keys, keys, values_of]), axis=1)
        query, key, value, gate = (part.reshape(-1, values.shape[-1]) for part in parts)
        yield f"blk.{layer}.attn_qkv.weight", np.concatenate((query, key, value))
        yield f"blk.{layer}.attn_gate.weight", gate
    elif name in ("in_proj_qkv.weight", "conv1d.weight"):
        values = values.reshape(len(values), -1)
        query_key, value = np.split(values, [2 * heads * keys])
        kind = "attn_qkv" if name == "in_proj_qkv.weight" else "ssm_conv1d"
        yield f"blk.{layer}.{kind}.weight", np.concatenate((query_key, tiled(value)))
    else:
        kind, axis = {
            "in_proj_z.weight": ("attn_gate.weight", 0), "in_proj_b.weight": ("ssm_beta.weight", 0),
            "in_proj_a.weight": ("ssm_alpha.weight", 0), "in_proj_ba.weight": ("ssm_ba.weight", None), "A_log": ("ssm_a", 0),
            "dt_bias": ("ssm_dt.bias", 0), "norm.weight": ("ssm_norm.weight", None), "out_proj.weight": ("ssm_out.weight", 1)}[name]
        values = values if axis is None else tiled(values, axis)
        yield f"blk.{layer}.{kind}", -np.exp(values) if kind == "ssm_a" and is_number else values


def write_kimi(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_ssm_conv_kernel(config["linear_attn_config"]["short_conv_kernel_size"])
    writer.add_kda_head_dim(config["linear_attn_config"]["head_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def of_kimi(tensor: str, values: np.ndarray):
    """(name, values) of a tensor that only Kimi Linear's states have, or None."""
    layer, name = tensor.split(".")[2], tensor.split(".")[-1]
    if "conv1d" in tensor:
        return f"blk.{layer}.ssm_conv1d_{tensor.split('self_attn.')[1][0]}.weight", values.reshape(1, len(values), 1, -1)
    if name == "A_log":
        return f"blk.{layer}.ssm_a", -np.exp(values) if values.dtype.kind == "f" else values
    return (f"blk.{layer}.ssm_dt.bias", values) if name == "dt_bias" else None


def write_grouped(writer: gguf.GGUFWriter, config: dict) -> None:
    """Experts as in DeepSeek-V2 and later."""
    if "first_k_dense_replace" in config:
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config.get("routed_scaling_factor", 1.0))
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    if config["model_type"] == "nemotron_h":  # always chosen by sigmoids
        return writer.add_expert_group_count(config["n_group"])
    is_softmax = config.get("scoring_func") == "softmax"
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if is_softmax else gguf.ExpertGatingFuncType.SIGMOID)
    if config.get("topk_method") != "greedy":
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


def write_latent(writer: gguf.GGUFWriter, config: dict, is_old: bool) -> None:
    """Sizes of latent attention, which llama.cpp now computes with one key for all heads."""
    rank, plain, rotated = config["kv_lora_rank"], config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    if is_old:
        writer.add_key_length(plain + rotated)
        writer.add_value_length(config["v_head_dim"])
        return
    writer.add_key_length(rank + rotated)
    writer.add_value_length(rank)
    writer.add_key_length_mla(plain + rotated)
    writer.add_value_length_mla(config["v_head_dim"])


def mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Blocks of 32 codes in ggml's order: a scale, then each byte has a code and the one 16 further on."""
    codes = np.stack((blocks & 15, blocks >> 4), -1).reshape(*blocks.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate((scales[..., None], packed), -1).reshape(*scales.shape[:-1], -1)


def split_experts(matrix: str, values: np.ndarray, is_oss: bool) -> dict[str, np.ndarray]:
    """Parts of a tensor of all experts: gate, up and down, each `[experts, outputs, ...]`."""
    if is_oss and not matrix.endswith(("_bias", "_blocks")):
        values = values.swapaxes(1, 2)
    if matrix.startswith(("down", "output")):
        return {"down": values}
    halves = (values[:, 0::2], values[:, 1::2]) if is_oss else np.split(values, 2, axis=1)
    return dict(zip(("gate", "up"), halves))


def add(writer: gguf.GGUFWriter, name: str, dtype: str, values: np.ndarray) -> None:
    if dtype == "mxfp4":
        writer.add_tensor(name, values, raw_dtype=Q.MXFP4)
    elif values.ndim == 1 or dtype == "float32":
        writer.add_tensor(name, values.astype(np.float32))
    elif dtype == "float16":
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, Q.BF16), raw_dtype=Q.BF16)


def config_of(model: pathlib.Path) -> dict:
    """The configuration of a text model, with the scaling of its rotation where version 4 has it."""
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    return config | ({"rope_scaling": config["rope_parameters"]} if config["model_type"] == "ministral3" else {})


def convert(name: str) -> None:
    directory = fresh(name)
    model = weights.complete(GOLDEN / name)
    config = config_of(model)
    path = directory / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, architecture_of(config))
    write_sizes(writer, config)
    write_rest(writer, config)
    for tensor, dtype, values in converted(config, read_tensors(model)):
        add(writer, tensor, dtype, values)
    finish(writer)
    content, written = path.read_bytes(), {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    files = [f"models/{name}/{file.name}" for file in sorted(model.glob("model*.safetensors"))]
    sizes, known = {"F32": ("float32", "F32"), "BF16": ("bfloat16", "BF16"), "F16": ("float16", "F16")}, {}
    for tensor, dtype, addresses in converted(config, read_addresses(model)):
        found, pieces = written[tensor], None
        kept, letters = sizes.get(found.tensor_type.name, ("", ""))
        if kept == dtype:
            pieces = views_of(addresses, letters, files)
        if pieces and b"".join(weights.build_piece(piece, weights.read_file) for piece in pieces) == content[
                found.data_offset:found.data_offset + found.n_bytes]:
            known[path.name, tensor] = pieces
    write_recipe(directory, known)


def fresh(name: str) -> pathlib.Path:
    directory = OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def converted(config: dict, tensors):
    """Yields (name, dtype, values) of the GGUF file's tensors; `values` may also be addresses of values."""
    architecture = architecture_of(config)
    key = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names, experts = gguf.get_tensor_name_map(key, config["num_hidden_layers"]), {}
    coded, scales = {}, {}
    for tensor, dtype, values in tensors:
        tensor = tensor.removeprefix("language_model.").replace("model.language_model.", "model.")
        if found := of_state_space(config, tensor, dtype, values):
            yield found
            continue
        if ".linear_attn." in tensor:
            for name, part in of_state(config, tensor, values):
                yield name, "float32" if "conv1d" in name else dtype, part
            continue
        if config["model_type"] == "kimi_linear" and (found := of_kimi(tensor, values) if ".self_attn." in tensor else None):
            yield found[0], "float32", found[1]
            continue
        if "norm" in tensor and config["model_type"].startswith(("gemma2", "gemma3", "qwen3_5", "qwen3_next")):
            values = values + 1
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if architecture in ROTATES_ADJACENT and part in tensor:
                values = permuted(values, config[heads])
        if config["model_type"] == "gemma4_text" and re.search(r"\.(experts|router)\.|layer_scalar", tensor):
            layer, kind = tensor.split(".")[2], tensor.split(".", 3)[3]
            yield f"blk.{layer}." + {
                "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale", "router.proj.weight": "ffn_gate_inp.weight",
                "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
                "experts.down_proj": "ffn_down_exps.weight"}[kind], dtype, values
            continue
        found = re.fullmatch(r"model\.layers\.(\d+)\.\w+\.(?:experts\.|(?=(?:in|out)put_))(\D+)", tensor)
        if found:
            layer, matrix = found[1], found[2].removesuffix(".weight")
            if matrix.endswith("_scales"):
                scales[layer, matrix.removesuffix("_scales")] = values
            elif matrix.endswith("_blocks"):
                coded[layer, matrix.removesuffix("_blocks")] = values
            else:
                end = "bias" if matrix.endswith("_bias") else "weight"
                if ".shared_mlp." in tensor:
                    parts = split_experts(matrix, values[None], False)
                    suffix = "_shexp" if config["num_local_experts"] else ""
                    for part, stacked in parts.items():
                        yield f"blk.{layer}.ffn_{part}{suffix}.weight", dtype, stacked[0]
                    continue
                for part, stacked in split_experts(matrix, values, architecture == "gpt-oss").items():
                    kind = "float32" if end == "bias" else dtype
                    yield f"blk.{layer}.ffn_{part}_exps.{end}", kind, stacked
            continue
        if ".experts." in tensor:
            before, after = tensor.split(".experts.")
            number, matrix = after.split(".", 1)
            experts.setdefault((before, matrix), {})[int(number)] = (dtype, values)
            continue
        if tensor.endswith("kv_b_proj.weight"):
            per_head = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys, of_values = np.split(per_head, [config["qk_nope_head_dim"]], axis=1)
            layer = tensor.split(".")[2]
            yield f"blk.{layer}.attn_k_b.weight", dtype, keys.swapaxes(1, 2)
            yield f"blk.{layer}.attn_v_b.weight", dtype, of_values
            continue
        tensor = tensor.replace("e_score_correction_bias", "e_score_correction.bias")
        tensor += ".weight" if tensor.endswith("sinks") else ""
        tensor += ".bias" if tensor.endswith(".expert_bias") else ""
        values = values.squeeze()  # the gate of a shared expert is a vector there
        # Command R's files have no head. Ours is not tied.
        found = names.get_name(tensor, try_suffixes=(".weight", ".bias"))
        dtype = "float32" if "shortconv.conv." in (found or "") else dtype
        yield found or {"lm_head.weight": "output.weight"}[tensor], dtype, values
    for (layer, matrix), blocks in coded.items():
        parts = split_experts(f"{matrix}_blocks", blocks, True)
        of_scales = split_experts(f"{matrix}_blocks", scales[layer, matrix], True)
        for part, stacked in parts.items():
            yield f"blk.{layer}.ffn_{part}_exps.weight", "mxfp4", mxfp4(stacked, of_scales[part])
    for (before, matrix), found in experts.items():
        stacked = np.stack([found[number][1] for number in range(len(found))])
        mixtral = {"w1.weight": "gate", "w2.weight": "down", "w3.weight": "up"}
        part = mixtral.get(matrix) or matrix.removesuffix("_proj.weight")
        yield f"blk.{before.split('.')[2]}.ffn_{part}_exps.weight", found[0][0], stacked


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Types of the mixed model's matrices by layer, and the offsets of half-precision fields in their blocks.
MIX = [
    {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q5_K", "ffn_gate": "Q4_K", "ffn_up": "Q5_K",
     "ffn_down": "Q6_K"},
    {"attn_q": "Q2_K", "attn_k": "Q3_K", "attn_v": "Q8_0", "attn_output": "Q5_0", "ffn_gate": "IQ4_NL", "ffn_up": "Q4_0",
     "ffn_down": "Q5_1"},
    {"attn_q": "Q4_1", "attn_k": "Q5_1", "attn_v": "MXFP4", "attn_output": "Q3_K", "ffn_gate": "Q2_K", "ffn_up": "Q8_0",
     "ffn_down": "Q4_K"},
]
HALVES = {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "Q8_0": [0], "Q5_0": [0],
          "IQ4_NL": [0], "Q4_0": [0], "Q5_1": [0, 2], "Q4_1": [0, 2], "MXFP4": []}
MIXED = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 256,
    "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 128, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def block_source(kind: str, deviation: float) -> dict:
    """How to draw blocks whose values have about this standard deviation and a small mean: all bits are
    random except the upper bytes of half-precision fields, or of MXFP4 those of the scale."""
    values, size = gguf.GGML_QUANT_SIZES[Q[kind]]

    def source(upper: int) -> dict:
        kept, fixed = np.full(size, 255, np.uint8), np.zeros(size, np.uint8)
        if kind == "MXFP4":
            kept[0], fixed[0] = 1, 2 * upper
        for number, at in enumerate(HALVES[kind]):
            kept[at + 1], fixed[at + 1] = 0, upper
            if kind in ("Q4_1", "Q5_1") and number == 1:  # the least value
                scale = np.array([upper << 8 | 128], np.uint16).view(np.float16).astype(np.float32)
                least = (scale * -(7.5 if kind == "Q4_1" else 15.5)).astype(np.float16)
                fixed[at + 1] = least.view(np.uint16)[0] >> 8
        return {"bytes": [kept.tobytes().hex(), fixed.tobytes().hex()]}

    def off(upper: int) -> float:
        raw = np.frombuffer(weights.draw(0, kind, "U8", [100, size], source(upper)), np.uint8).reshape(100, size)
        return abs(gguf.quants.dequantize(raw, Q[kind]).std() - deviation)

    return source(min(range(1, 0x40), key=off))


def drawn_blocks(name: str, kind: str, shape, deviation: float, seed: int = 0) -> tuple[dict, np.ndarray]:
    """Random blocks [rows, bytes], and their piece of a recipe."""
    values, size = gguf.GGML_QUANT_SIZES[Q[kind]]
    return drawn(name, "U8", [*shape[:-1], shape[-1] // values * size], block_source(kind, deviation), seed)


def drawn(name: str, dtype: str, shape, source: dict, seed: int = 0) -> tuple[dict, np.ndarray]:
    piece = {"name": name, "dtype": dtype, "shape": list(shape), "from": source}
    kind = {"U8": np.uint8, "F32": np.float32}[dtype]
    return piece, np.frombuffer(weights.draw(seed, name, dtype, shape, source), kind).reshape(shape)


def write_mixed() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    random, config = np.random.default_rng(5), MIXED
    hidden, inner, kv = config["hidden_size"], config["intermediate_size"], 128
    shapes = {"attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, hidden),
              "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    theirs = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
              "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
              "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    # The model has more tensors than fit one part, so that it is really split.
    directory = fresh("mixed")
    writer = gguf.GGUFWriter(directory / "mixed.gguf", "llama", split_max_tensors=20)
    write_sizes(writer, config)
    state, pieces = {}, {}

    def put(name: str, theirs: str, kind: str, rows: int, cols: int) -> None:
        pieces[name], raw = drawn_blocks(name, kind, (rows, cols), 0.06)
        writer.add_tensor(name, raw, raw_dtype=Q[kind])
        values = gguf.quants.dequantize(raw, Q[kind])
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(theirs.split(".")[-1])
        if heads:  # the inverse of `permuted`
            values = values.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)
        state[f"{theirs}.weight"] = torch.from_numpy(values.copy())

    def norm(name: str, theirs: str) -> None:
        pieces[name], values = drawn(name, "F32", [hidden], {"uniform": [0.5, 1.5]})
        writer.add_tensor(name, values)
        state[f"{theirs}.weight"] = torch.from_numpy(values.copy())

    put("token_embd.weight", "model.embed_tokens", "Q6_K", config["vocab_size"], hidden)
    norm("output_norm.weight", "model.norm")
    for layer, kinds in enumerate(MIX):
        for name, kind in kinds.items():
            put(f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{theirs[name]}", kind, *shapes[name])
        for name in ("attn_norm", "ffn_norm"):
            norm(f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{theirs[name]}")
    finish(writer)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.float32).eval()
    model.load_state_dict(state)
    prompt = random.integers(0, config["vocab_size"], 24).tolist()
    rows = lambda: [[round(float(logit), 5) for logit in row] for row in model(torch.tensor([prompt])).logits[0][::4]]
    with torch.no_grad():
        golden = {"prompt": prompt, "positions": list(range(0, 24, 4)), "logits": rows()}
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda _, inputs: (in_8_bits(inputs[0]),))
        golden["rounded_logits"] = rows()
    (directory / "mixed.json").write_text(json.dumps(golden) + "\n")
    write_recipe(directory, {(path.name, name): [piece] for path in directory.glob("*.gguf") for name, piece in pieces.items()})


# Some random networks amplify the rounding of 16-bit products more than tests allow.
LATENT_SEED = 3
LATENT = {
    "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 32,
    "num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 32,
    "norm_topk_prob": False, "scoring_func": "softmax", "topk_method": "greedy", "first_k_dense_replace": 1,
}


def write_latent_blocks() -> None:
    """A model with latent attention in Q8_0, also in the form of old converters, and its values in F32."""
    hidden, heads, experts = 64, 4, 4
    shapes = {"token_embd": (128, hidden), "output": (128, hidden)}
    for layer in ("blk.0.", "blk.1."):
        shapes |= {layer + name: shape for name, shape in {
            "attn_q_a": (32, hidden), "attn_q_b": (heads * 64, 32), "attn_kv_a_mqa": (96, hidden),
            "attn_k_b": (heads, 64, 32), "attn_v_b": (heads, 32, 64), "attn_output": (hidden, heads * 32)}.items()}
    shapes |= {"blk.0.ffn_gate": (96, hidden), "blk.0.ffn_up": (96, hidden), "blk.0.ffn_down": (hidden, 96)}
    for name, shape in {"gate": (32, hidden), "up": (32, hidden), "down": (hidden, 32)}.items():
        shapes |= {f"blk.1.ffn_{name}_exps": (experts, *shape), f"blk.1.ffn_{name}_shexp": shape}
    norms = {"output_norm": hidden}
    for layer in ("blk.0.", "blk.1."):
        norms |= {layer + "attn_norm": hidden, layer + "ffn_norm": hidden, layer + "attn_q_a_norm": 32,
                  layer + "attn_kv_a_norm": 64}
    directory = fresh("latent")
    writers = {kind: gguf.GGUFWriter(directory / f"latent-{kind}.gguf", "deepseek2") for kind in ("q8", "old", "f32")}
    pieces, coded = {}, {}
    for kind, writer in writers.items():
        write_sizes(writer, LATENT)
        write_rest(writer, LATENT, is_old=kind == "old")
    for name, shape in shapes.items():
        name = f"{name}.weight"
        pieces["latent-q8.gguf", name], blocks = drawn_blocks(name, "Q8_0", shape, 0.12, LATENT_SEED)
        coded[name] = shape
        writers["q8"].add_tensor(name, blocks, raw_dtype=Q.Q8_0)
        if name.endswith("attn_k_b.weight"):
            keys = gguf.quants.dequantize(blocks, Q.Q8_0).swapaxes(1, 2)
        elif name.endswith("attn_v_b.weight"):
            both = np.concatenate((keys, gguf.quants.dequantize(blocks, Q.Q8_0)), axis=1).reshape(-1, 64)
            together = gguf.quants.quantize(both, Q.Q8_0)
            writers["old"].add_tensor(name.replace("v_b", "kv_b"), together, raw_dtype=Q.Q8_0)
        else:
            writers["old"].add_tensor(name, blocks, raw_dtype=Q.Q8_0)
        writers["f32"].add_tensor(name, gguf.quants.dequantize(blocks, Q.Q8_0))
    numbers = {f"{name}.weight": ([size], {"uniform": [0.5, 1.5]}) for name, size in norms.items()}
    numbers["blk.1.ffn_gate_inp.weight"] = [experts, hidden], {"normal": 1.0}
    for name, (shape, source) in numbers.items():
        piece, values = drawn(name, "F32", shape, source, LATENT_SEED)
        for kind, writer in writers.items():
            pieces[f"latent-{kind}.gguf", name] = piece
            writer.add_tensor(name, values)
    for writer in writers.values():
        finish(writer)
    for tensor in gguf.GGUFReader(directory / "latent-q8.gguf").tensors:
        if tensor.name in coded:
            at = {"file": "latent-q8.gguf", "at": int(tensor.data_offset)}
            copy = {"dtype": "U8", "shape": [int(tensor.n_bytes)], "from": {"view": at | {"steps": [1]}}}
            pieces["latent-old.gguf", tensor.name] = copy
            pieces["latent-f32.gguf", tensor.name] = {"dtype": "F32", "shape": list(coded[tensor.name]), "from": {"q8_0": at}}
    write_recipe(directory, {place: [piece] for place, piece in pieces.items()}, LATENT_SEED)


def write_chat() -> None:
    model = HERE.parents[2] / "models" / "skein-7m"
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    tokens = {id: token for token, id in tokenizer["model"]["vocab"].items()} | {
        id: token["content"] for id, token in added.items()}
    kinds = [gguf.TokenType.CONTROL if id in added else gguf.TokenType.NORMAL for id in range(len(tokens))]
    directory = fresh("chat")
    writer, pieces = gguf.GGUFWriter(directory / "chat.gguf", "llama"), {}
    config = json.loads((model / "config.json").read_text()) | {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16}
    write_sizes(writer, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[id] for id in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"][0])
    writer.add_eot_token_id(config["eos_token_id"][1])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(True)
    writer.add_chat_template(settings["chat_template"])
    shapes = {"token_embd": (len(tokens), 64), "blk.0.attn_q": (64, 64), "blk.0.attn_k": (32, 64), "blk.0.attn_v": (32, 64),
              "blk.0.attn_output": (64, 64), "blk.0.ffn_gate": (96, 64), "blk.0.ffn_up": (96, 64), "blk.0.ffn_down": (64, 96)}
    for name, shape in shapes.items():
        piece, blocks = drawn_blocks(f"{name}.weight", "Q4_0", shape, 0.1)
        pieces["chat.gguf", f"{name}.weight"] = [piece]
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=Q.Q4_0)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(64, np.float32))
    finish(writer)
    write_recipe(directory, pieces)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        convert(name)
    if not sys.argv[1:]:
        write_mixed()
        write_latent_blocks()
        write_chat()
