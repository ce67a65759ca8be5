"""GGUF files of a safetensors model, for the peers that read no other form.

Usage: gguf_files.py MODEL_DIR OUT_DIR TYPE...   (TYPE: bf16, f16, q8_0, q6_k, q4_0, q4_k_m)

The bf16 file holds exactly the model's weights; llama.cpp's own quantiser makes the others, with its own
choice of types (under Q4_0 the tied head stays Q6_K or Q8_0). The tokenizer is a dummy that loads: prompts
are token ids. Only Qwen2, Llama, OLMoE and Gemma 3, with weights in one bf16 file, as `skein-dev
make-model` writes them.
"""

import json
import math
import os
import re
import sys

import gguf
import llama_cpp
import numpy as np

QUANTISED = {kind: f"MOSTLY_{kind.upper()}" for kind in ("f16", "q8_0", "q6_k", "q4_0", "q4_k_m")}
# Of each model type: the architecture's name, and a pre-tokenizer.
ARCHITECTURES = {"qwen2": ("qwen2", "qwen2"), "llama": ("llama", "llama-bpe"), "olmoe": ("olmoe", "olmo"),
                 "gemma3_text": ("gemma3", "default")}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {
    **LAYER_NAMES, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tensors(path: str):
    """Yields (name, bf16 bits as uint16) of a safetensors file."""
    with open(path, "rb") as file:
        header_len = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_len))
    data = np.memmap(path, np.uint8, "r", offset=8 + header_len)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", f"{name} is {entry['dtype']}; only bf16 models are converted"
        begin, end = entry["data_offsets"]
        yield name, data[begin:end].view(np.uint16).reshape(entry["shape"])


def gguf_name(name: str, layer_names: dict[str, str]) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{layer_names[part]}.{suffix}"


def interleaved(weights: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a rotated projection as llama.cpp does for Llama: pairs are adjacent, not half a
    head apart."""
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def llama3_factors(config: dict) -> np.ndarray:
    """Divisor of each rotary frequency (Llama 3.1's scaling)."""
    scaling, head_dim = config["rope_scaling"], config["head_dim"]
    old, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (2 * pair / head_dim)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(factor)
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def write_config(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_name("random")
    writer.add_context_length(32768)  # longer than any run here; peers get the length of theirs
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def write_dummy_tokenizer(writer: gguf.GGUFWriter, vocab_size: int, pre: str) -> None:
    """A byte-level BPE with one merge; no text encodes to any other word."""
    letters = [chr(code) for code in range(33, 127)]
    words = letters + ["!!"] + [f"t{number}" for number in range(vocab_size - len(letters) - 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * (vocab_size - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["! !"])
    writer.add_bos_token_id(vocab_size - 1)
    writer.add_eos_token_id(vocab_size - 1)
    writer.add_add_bos_token(False)


def add_bf16(writer: gguf.GGUFWriter, name: str, bits: np.ndarray) -> None:
    writer.add_tensor(name, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def write_bf16(model_dir: str, out: str) -> None:
    with open(os.path.join(model_dir, "config.json")) as file:
        config = json.load(file)
    arch, pre = ARCHITECTURES[config["model_type"]]
    layer_names = GEMMA_NAMES if arch == "gemma3" else LAYER_NAMES
    norm_offset = 1 if arch == "gemma3" else 0  # llama.cpp multiplies by the stored value itself
    writer = gguf.GGUFWriter(out, arch)
    write_config(writer, config)
    write_dummy_tokenizer(writer, config["vocab_size"], pre)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    of_experts = {}
    for name, bits in tensors(os.path.join(model_dir, "model.safetensors")):
        if ".experts." in name:
            layer, expert, part = re.match(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)_proj", name).groups()
            of_experts.setdefault((int(layer), part), {})[int(expert)] = bits
            continue
        projection = name.split(".")[-2]
        if arch == "llama" and projection in heads:
            bits = interleaved(bits, heads[projection])
        # As in llama.cpp's own conversions, norms, biases and the choice of experts are f32.
        if bits.ndim == 1 or "mlp.gate." in name:
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            values = values + np.float32(norm_offset) if "norm" in name else values
            writer.add_tensor(gguf_name(name, layer_names), values)
        else:
            add_bf16(writer, gguf_name(name, layer_names), bits)
    for (layer, part), experts in sorted(of_experts.items()):
        stacked = np.stack([experts[number] for number in range(len(experts))])
        add_bf16(writer, f"blk.{layer}.ffn_{part}_exps.weight", stacked)
    if config.get("rope_scaling"):
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantise(source: str, out: str, kind: str) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{QUANTISED[kind]}")
    status = llama_cpp.llama_model_quantize(source.encode(), out.encode(), params)
    if status != 0:
        sys.exit(f"llama.cpp could not write {out} (status {status})")


def main() -> None:
    model_dir, out_dir, *kinds = sys.argv[1:]
    os.makedirs(out_dir, exist_ok=True)
    source = os.path.join(out_dir, "bf16.gguf")
    if not os.path.exists(source):
        write_bf16(model_dir, source + ".part")
        os.replace(source + ".part", source)
    for kind in kinds:
        path = os.path.join(out_dir, f"{kind}.gguf")
        if not os.path.exists(path):
            quantise(source, path + ".part", kind)
            os.replace(path + ".part", path)
        print(f"{path}: {os.path.getsize(path) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
