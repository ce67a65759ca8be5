"""Logits of transformers over prompts of 3,000 tokens, in 32 and 64 bits, for families whose layers keep
states, windows or shared keys. Run by hand: the results are not kept. transformers computes norms and the
delta rule in 32 bits in both.

    python long_prompts.py directory [NAME ...]      (what models.py needs)
    TEST_LONG_PROMPTS=directory cargo test -p skein-worker --test cpu_model -- long_prompts --nocapture

The test prints the largest difference of a log-probability, and which of the two is farther from 64 bits.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import weights
from models import HERE, quiet

NAMES = ["qwen3-5", "qwen3-5-moe", "qwen3-next", "lfm2", "lfm2-moe", "granite-hybrid", "granite-hybrid-v5", "gemma4", "gemma4-moe", "gemma4-per-layer",
         "nemotron-h", "nemotron-h-moe", "nemotron-h-latent", "kimi-linear", "kimi-linear-v5", "ministral3-v5"]
TOKENS, LONGEST = 3000, 4096
POSITIONS = [0, 1, 63, 64, 100, 255, 256, *range(499, TOKENS, 250)]


def write(name: str, to: pathlib.Path) -> None:
    shutil.copytree(weights.complete(HERE / "models" / name), to, dirs_exist_ok=True)
    config = json.loads((to / "config.json").read_text())
    text = config.get("text_config") or config
    text["model_max_length" if "model_max_length" in text else "max_position_embeddings"] = LONGEST
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    vocab = (config.get("text_config") or config)["vocab_size"]
    prompt = torch.randint(2, vocab, (1, TOKENS), generator=torch.Generator().manual_seed(7))
    rows = {}
    for key, dtype in (("single", torch.float32), ("double", torch.float64)):
        model = AutoModelForCausalLM.from_pretrained(to, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
        with torch.no_grad():
            logits = model(prompt, use_cache=False).logits[0][POSITIONS]
        rows[key] = torch.log_softmax(logits.double(), -1).float().contiguous()
    save_file(rows, str(to / "long.safetensors"))
    (to / "long.json").write_text(json.dumps({"prompt": prompt[0].tolist(), "positions": POSITIONS}) + "\n")
    print(f"{name}: transformers in 32 bits differs from itself in 64 by {(rows['single'] - rows['double']).abs().max():.1e}")


if __name__ == "__main__":
    quiet()
    for name in sys.argv[2:] or NAMES:
        write(name, pathlib.Path(sys.argv[1]) / name)
