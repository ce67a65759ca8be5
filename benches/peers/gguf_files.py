"""GGUF files of a safetensors model, for the peers that read no other form.

Usage: gguf_files.py MODEL_DIR OUT_DIR TYPE...   (TYPE: bf16, f16, q8_0, q6_k, q4_0, q4_k_m)

The bf16 file holds exactly the model's weights; llama.cpp's own quantiser makes the others, with its own
choice of types (under Q4_0 the tied head stays Q6_K or Q8_0). The tokenizer is a dummy that loads: prompts
are token ids. Only Qwen2, Llama, OLMoE, Gemma 3 and Qwen 3.5, with weights in one bf16 file, as `skein-dev
make-model` writes them.
"""

import json
import os
import pathlib
import sys

import gguf
import llama_cpp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/golden/gguf"))
import models as names  # noqa: E402  what goldens are named and ordered by

QUANTISED = {kind: f"MOSTLY_{kind.upper()}" for kind in ("f16", "q8_0", "q6_k", "q4_0", "q4_k_m")}
PRE_TOKENIZERS = {"qwen2": "qwen2", "llama": "llama-bpe", "olmoe": "olmo", "gemma3_text": "default",
                  "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35"}


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


def as_converted(name: str, bits: np.ndarray) -> tuple[str, str, np.ndarray]:
    """As in llama.cpp's own conversions, norms, biases, convolutions and the choice of experts are f32."""
    if bits.ndim == 1 or any(part in name for part in ("conv1d", "mlp.gate.", "shared_expert_gate")):
        return name, "float32", (bits.astype(np.uint32) << 16).view(np.float32)
    return name, "bfloat16", bits


def write_bf16(model_dir: str, out: str) -> None:
    with open(os.path.join(model_dir, "config.json")) as file:
        config = json.load(file)
    writer = gguf.GGUFWriter(out, names.ARCHITECTURES[config["model_type"]])
    writer.add_name("random")
    names.write_sizes(writer, config)
    names.write_rest(writer, config)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    write_dummy_tokenizer(writer, config["vocab_size"], PRE_TOKENIZERS[config["model_type"]])
    read = (as_converted(*entry) for entry in tensors(os.path.join(model_dir, "model.safetensors")))
    for name, _, values in names.converted(config, read):
        if values.dtype == np.uint16:
            add_bf16(writer, name, values)
        else:
            writer.add_tensor(name, values)
    names.finish(writer)


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
