"""Makes GGUF files of the golden models like llama.cpp's converter, and one of mixed quantised types.

Usage: models.py   (pip install gguf==0.19.0 safetensors torch transformers)

- models/NAME.gguf has the weights of ../models/NAME in their type, so the logits in its golden files hold.
- models/mixed.gguf is a Llama of random quantised blocks, split in two files; mixed.json has the logits that
  transformers computes in float32 with the weights as the `gguf` package dequantises them, and those with
  activations rounded to 8 bits.
- models/chat.gguf has the shipped model's vocabulary and template and a small random network, so it can be
  served.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
from safetensors import safe_open

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "models"
OUT = HERE / "models"
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "phi3": "phi3", "granite": "granite", "olmo2": "olmo2", "olmoe": "olmoe",
    "qwen2_moe": "qwen2moe", "smollm3": "smollm3",
}
NAMES = [
    "llama-gqa", "llama3-rope", "mistral", "mixtral", "qwen2", "qwen2-tied-v5", "qwen3", "gemma2", "gemma3", "phi3-long",
    "granite", "olmo2", "olmoe", "qwen2-moe", "smollm3",
]
# Their queries and keys are permuted.
ROTATES_ADJACENT = ["llama", "granite", "smollm3"]
FACTORS = {
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
}
Q = gguf.GGMLQuantizationType


def read_tensors(directory: pathlib.Path):
    """Yields (name, dtype, values as float32)."""
    import torch

    for path in sorted(directory.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                yield name, str(tensor.dtype).removeprefix("torch."), tensor.to(torch.float32).numpy()


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


def write_sizes(writer: gguf.GGUFWriter, config: dict) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    parameters = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(config.get("rope_theta", parameters.get("rope_theta", 10000.0)))
    writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1.0)))
    if config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)


def write_rest(writer: gguf.GGUFWriter, config: dict) -> None:
    kind = config["model_type"]
    if kind in ("mixtral", "olmoe", "qwen2_moe"):
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if kind == "qwen2_moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if kind == "granite":
        for key, field in FACTORS.items():
            writer.add_float32(f"granite.{key}", config[field])
    if config.get("sliding_window") and kind in ("gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(config["sliding_window"])
    if kind.startswith("gemma"):
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)  # not the default
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if kind == "gemma3_text":
        writer.add_float32("gemma3.rope.freq_base_swa", config["rope_local_base_freq"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
    scaling = config.get("rope_scaling") or {}
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


def add(writer: gguf.GGUFWriter, name: str, dtype: str, values: np.ndarray) -> None:
    if values.ndim == 1 or dtype == "float32":
        writer.add_tensor(name, values.astype(np.float32))
    elif dtype == "float16":
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, Q.BF16), raw_dtype=Q.BF16)


def convert(name: str) -> None:
    directory = GOLDEN / name
    config = json.loads((directory / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", architecture)
    write_sizes(writer, config)
    write_rest(writer, config)
    key = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names, experts = gguf.get_tensor_name_map(key, config["num_hidden_layers"]), {}
    for tensor, dtype, values in read_tensors(directory):
        if "norm" in tensor and config["model_type"].startswith("gemma"):
            values = values + 1
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if architecture in ROTATES_ADJACENT and part in tensor:
                values = permuted(values, config[heads])
        if ".experts." in tensor:
            before, after = tensor.split(".experts.")
            if "." not in after:  # version 5 of transformers: all experts' matrices in one tensor
                parts = {"down": values}
                if after == "gate_up_proj":
                    parts = dict(zip(("gate", "up"), np.split(values, 2, axis=1)))
                for part, stacked in parts.items():
                    add(writer, f"blk.{before.split('.')[2]}.ffn_{part}_exps.weight", dtype, stacked)
                continue
            number, matrix = after.split(".", 1)
            experts.setdefault((before, matrix), {})[int(number)] = (dtype, values)
            continue
        values = values.squeeze()  # the gate of a shared expert is a vector there
        add(writer, names.get_name(tensor, try_suffixes=(".weight", ".bias")), dtype, values)
    for (before, matrix), found in experts.items():
        stacked = np.stack([found[number][1] for number in range(len(found))])
        mixtral = {"w1.weight": "gate", "w2.weight": "down", "w3.weight": "up"}
        part = mixtral.get(matrix) or matrix.removesuffix("_proj.weight")
        add(writer, f"blk.{before.split('.')[2]}.ffn_{part}_exps.weight", found[0][0], stacked)
    finish(writer)


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


def blocks(random: np.random.Generator, kind: str, rows: int, cols: int) -> np.ndarray:
    """Random blocks whose values have a standard deviation of about 0.06 and a small mean."""
    values, size = gguf.GGML_QUANT_SIZES[Q[kind]]
    raw = random.integers(0, 256, (rows * cols // values, size), np.uint8)
    scales = random.uniform(0.5, 1.5, (len(raw), 1))
    for at, halves in enumerate(HALVES[kind]):
        raw[:, halves : halves + 2] = (scales * 1e-3).astype(np.float16).view(np.uint8)
        if kind in ("Q4_1", "Q5_1") and at == 1:
            codes = 15 if kind == "Q4_1" else 31
            raw[:, halves : halves + 2] = (scales * -5e-4 * codes).astype(np.float16).view(np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = random.integers(117, 120, len(raw), np.uint8)
    # One factor for all scales brings the values to their deviation.
    found = gguf.quants.dequantize(raw, Q[kind])
    for halves in HALVES[kind]:
        half = raw[:, halves : halves + 2].copy().view(np.float16).astype(np.float32)
        raw[:, halves : halves + 2] = (half * (0.06 / found.std())).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def rounded(x, leaves: int):
    """Activations as 8-bit codes with one scale for each row and leaf, as Skein rounds them."""
    parts = x.reshape(*x.shape[:-1], leaves, -1)
    scale = parts.abs().amax(-1, keepdim=True) / 127
    return ((parts / scale).round() * scale).reshape(x.shape)


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
    writer = gguf.GGUFWriter(OUT / "mixed.gguf", "llama", split_max_tensors=20)
    write_sizes(writer, config)
    state = {}

    def put(name: str, theirs: str, kind: str, rows: int, cols: int) -> None:
        raw = blocks(random, kind, rows, cols)
        writer.add_tensor(name, raw, raw_dtype=Q[kind])
        values = gguf.quants.dequantize(raw, Q[kind])
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(theirs.split(".")[-1])
        if heads:  # the inverse of `permuted`
            values = values.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)
        state[f"{theirs}.weight"] = torch.from_numpy(values.copy())

    def norm(name: str, theirs: str) -> None:
        values = random.uniform(0.5, 1.5, hidden).astype(np.float32)
        writer.add_tensor(name, values)
        state[f"{theirs}.weight"] = torch.from_numpy(values)

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
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                # Skein's products that ranks may share have a scale for each eighth of their inputs.
                leaves = 8 if name.endswith(("o_proj", "down_proj")) else 1
                module.register_forward_pre_hook(lambda _, inputs, leaves=leaves: (rounded(inputs[0], leaves),))
        golden["rounded_logits"] = rows()
    (OUT / "mixed.json").write_text(json.dumps(golden) + "\n")


def write_chat() -> None:
    model = HERE.parents[2] / "models" / "skein-7m"
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    tokens = {id: token for token, id in tokenizer["model"]["vocab"].items()} | {
        id: token["content"] for id, token in added.items()}
    kinds = [gguf.TokenType.CONTROL if id in added else gguf.TokenType.NORMAL for id in range(len(tokens))]
    writer = gguf.GGUFWriter(OUT / "chat.gguf", "llama")
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
    random = np.random.default_rng(11)
    shapes = {"token_embd": (len(tokens), 64), "blk.0.attn_q": (64, 64), "blk.0.attn_k": (32, 64), "blk.0.attn_v": (32, 64),
              "blk.0.attn_output": (64, 64), "blk.0.ffn_gate": (96, 64), "blk.0.ffn_up": (96, 64), "blk.0.ffn_down": (64, 96)}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32) * 0.1
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, Q.Q4_0), raw_dtype=Q.Q4_0)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(64, np.float32))
    finish(writer)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        convert(name)
    if not sys.argv[1:]:
        write_mixed()
        write_chat()
