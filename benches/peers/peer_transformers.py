"""transformers on torch as a peer: whole batches with its own KV cache, step by step.

Usage: peer_transformers.py MODEL_DIR THREADS MAX_SEQUENCES MAX_CONTEXT
PEER_TORCH_DTYPE: bfloat16 (the default) or float32.
"""

import os
import sys

import torch
import transformers
from peer import answer_questions


def load():
    path, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    dtype = os.environ.get("PEER_TORCH_DTYPE", "bfloat16")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    description = {"name": "transformers", "version": f"{transformers.__version__}, torch {torch.__version__}",
                   "settings": f"{dtype}, {model.config._attn_implementation} attention, dynamic cache"}
    return description, model.config.vocab_size, Generator(model)


class Generator:
    def __init__(self, model):
        self.model = model

    def __call__(self, prompts: list[list[int]], output: int):
        ids, cache = torch.tensor(prompts), None
        for _ in range(output):
            with torch.inference_mode():
                out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = out.past_key_values
                ids = out.logits[:, -1, :].argmax(-1, keepdim=True)
            yield int(ids[0, 0])


if __name__ == "__main__":
    answer_questions(load)
