#!/usr/bin/env bash
# Guess: llama.cpp takes all settings of yarn (Peng et al. 2023) from a GGUF file, since the gguf package has
# a method to write each.
# Seen: llama.cpp as in llama-cpp-python 0.3.36 reads the factor and the original length, but not
# yarn_beta_fast, yarn_beta_slow and yarn_attn_factor, here in files of llama and olmo2: the logits have the
# same bits, whatever they say. The betas have an effect if they are given when the file is opened, so such a
# model has the logits of its checkpoint only if whoever opens it repeats them. A negative beta, "from the
# model", changes nothing.
# Run with llama_cpp_python 0.3.36 and gguf 0.19.0, which is compiled for minutes if there is no wheel.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install llama_cpp_python==0.3.36 gguf==0.19.0 numpy
cat >"$T/yarn.py" <<'PY'
import pathlib
import sys

import gguf
import numpy as np
from llama_cpp import Llama

HIDDEN, INNER, HEADS, TOKENS = 64, 128, 4, 32
BETAS = (1.0, 0.01)  # instead of 32 and 1
PROMPT = [1 + i * 7 % 31 for i in range(200)]
FROM_THE_MODEL = {"yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0, "yarn_attn_factor": -1.0}


def write(path, architecture, betas=None, amplitude=None):
    """A model of one layer with drawn weights, trained for 64 positions and stretched by 8."""
    file, random = gguf.GGUFWriter(path, architecture), np.random.default_rng(1)
    for add, value in [("context_length", 512), ("embedding_length", HIDDEN), ("block_count", 1),
                       ("feed_forward_length", INNER), ("head_count", HEADS), ("head_count_kv", HEADS),
                       ("layer_norm_rms_eps", 1e-6), ("rope_freq_base", 1e4), ("vocab_size", TOKENS),
                       ("rope_dimension_count", HIDDEN // HEADS), ("rope_scaling_factor", 8.0),
                       ("rope_scaling_type", gguf.RopeScalingType.YARN), ("rope_scaling_orig_ctx_len", 64),
                       ("tokenizer_model", "none")]:
        getattr(file, f"add_{add}")(value)
    if betas:
        file.add_rope_scaling_yarn_beta_fast(betas[0])
        file.add_rope_scaling_yarn_beta_slow(betas[1])
    if amplitude:
        file.add_rope_scaling_yarn_attn_factor(amplitude)
    matrices = {"token_embd": (TOKENS, HIDDEN), "output": (TOKENS, HIDDEN), "blk.0.ffn_gate": (INNER, HIDDEN),
                "blk.0.ffn_up": (INNER, HIDDEN), "blk.0.ffn_down": (HIDDEN, INNER)}
    matrices |= {f"blk.0.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")}
    norms = {"llama": ["attn_norm", "ffn_norm"],
             "olmo2": ["attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"]}[architecture]
    for name, shape in matrices.items():
        values = random.standard_normal(shape) * 2 / shape[1] ** 0.5
        file.add_tensor(f"{name}.weight", values.astype(np.float32))
    for name in ["output_norm", *(f"blk.0.{norm}" for norm in norms)]:
        file.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def logits(path, **given):
    model = Llama(str(path), n_ctx=512, logits_all=True, verbose=False, **given)
    model.eval(PROMPT)
    return np.array(model.scores[:len(PROMPT)])


def differ(a, b):
    return float(np.abs(a - b).max())


root = pathlib.Path(sys.argv[1])
for architecture in ("llama", "olmo2"):
    plain, betas, amplitude = (root / f"{architecture}-{name}.gguf" for name in ("plain", "betas", "amplitude"))
    write(plain, architecture)
    write(betas, architecture, betas=BETAS)
    write(amplitude, architecture, amplitude=1.5)
    for given in ({}, FROM_THE_MODEL):
        before = logits(plain, **given)
        of_file = [differ(before, logits(path, **given)) for path in (betas, amplitude)]
        print(f"{architecture}, {'from the model' if given else 'defaults'}: betas and amplitude of the file change logits by {of_file}")
        assert of_file == [0.0, 0.0]
    of_call = differ(logits(plain), logits(plain, yarn_beta_fast=BETAS[0], yarn_beta_slow=BETAS[1]))
    print(f"{architecture}: the same betas when it is opened change them by {of_call:.3f}")
    assert of_call > 0.1
PY
"$T/v/bin/python" "$T/yarn.py" "$T" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
echo "the behaviour is as described"
