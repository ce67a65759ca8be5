"""Compares llama.cpp's logits with those of transformers, in float32, for files that models.py writes.

Usage: peer_logits.py [NAME ...]
(pip install gguf==0.19.0 llama-cpp-python==0.3.36 safetensors torch transformers==5.23.0)

Run by hand. The weights are random, in the shapes of ../models/NAME, because llama.cpp rounds the inputs of
16-bit weights. It also takes GELU from a table in 16 bits, so transformers' GELU is rounded likewise here;
where a value is between two entries, they differ all the same, by as much as if GELU's input is changed by
3e-7 of itself. Prints the largest difference of a log-probability over a prompt, and fails above 1e-2 with
that table, else above 1e-4.
"""

import ctypes
import json
import pathlib
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import models

NAMES = ["gemma4", "gemma4-moe", "gemma4-per-layer", "granite-hybrid"]
# llama.cpp lets layers that share keys and values read those of the last two layers before them, as in all
# published models, where one of the two has a window.
CHANGES = {"gemma4-per-layer": {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2}}
PROMPT = 96


def network(config: dict) -> torch.nn.Module:
    """A random model whose gates and decays are neither all equal nor saturated."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).eval()
    if "gelu" in config.get("hidden_activation", ""):
        for module in model.modules():
            if hasattr(module, "act_fn"):
                module.act_fn = RoundedGelu()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim == 1:
                weights.uniform_(0.5, 1.5)
            else:
                weights.normal_(0, weights.shape[-1] ** -0.5)
        for name, weights in model.named_buffers():
            if name.endswith("layer_scalar"):
                weights.uniform_(0.5, 1.5)
    return model


class RoundedGelu(torch.nn.Module):
    """GELU as in ggml: between -10 and 10 from a table of halves."""

    def forward(self, x):
        table = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, table))


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1).numpy()


def theirs(path: str, prompt: list[int], vocab: int) -> np.ndarray:
    """Logits of llama.cpp."""
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp does not load {path}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.type_k = params.type_v = params.flash_attn_type = 0  # numbers in 32 bits, without flash attention
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(len(prompt), 0, 1)
    batch.n_tokens = len(prompt)
    for at, token in enumerate(prompt):
        batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, True
        batch.seq_id[at][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    return np.stack([np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (vocab,)).copy() for at in range(len(prompt))])


def check(name: str) -> float:
    config = json.loads((models.GOLDEN / name / "config.json").read_text())
    config = (config.get("text_config") or config) | CHANGES.get(name, {})
    model = network(config)
    prompt = np.random.default_rng(3).integers(2, config["vocab_size"], PROMPT).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0].numpy()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        model.save_pretrained(directory)
        writer = gguf.GGUFWriter(directory / "m.gguf", models.ARCHITECTURES[config["model_type"]])
        models.write_sizes(writer, config)
        models.write_rest(writer, config)
        writer.add_tokenizer_model("no_vocab")
        for tensor, dtype, values in models.converted(config, models.read_tensors(directory)):
            models.add(writer, tensor, dtype, values)
        models.finish(writer)
        got = theirs(str(directory / "m.gguf"), prompt, config["vocab_size"])
    return float(np.abs(log_probabilities(got) - log_probabilities(expected)).max())


@llama_cpp.llama_log_callback
def LOG(level, text, data):
    """llama.cpp says much."""


if __name__ == "__main__":
    llama_cpp.llama_log_set(LOG, ctypes.c_void_p(0))
    has_failed = False
    for name in sys.argv[1:] or NAMES:
        difference, most = check(name), 1e-2 if name.startswith("gemma") else 1e-4
        has_failed |= not difference <= most
        print(f"{name}: log-probabilities differ by at most {difference:.2e}")
    sys.exit(has_failed)
