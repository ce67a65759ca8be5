#!/usr/bin/env bash
# Guess: transformers saves a model under the names that the published files have, which it also reads, so a
# loader of the published files reads what was fine-tuned and saved.
# Seen: the published Kimi K2.5 has language_model.model.layers.N, and transformers 5.24.0 loads these names,
# but saves the layers of the language model as language_model.model.blocks.N. It reads both.
# Run with transformers 5.24.0 and torch 2.15.0 for CPUs; a download of some hundred MB.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/venv"
"$T/venv/bin/pip" -q install transformers==5.24.0 torch==2.15.0
cat >"$T/save.py" <<'PY'
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

text = {"model_type": "kimi_k2", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 8, "q_lora_rank": 8,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
images = {"model_type": "kimi_k25_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 2, "patch_size": 14, "pos_emb_height": 4, "pos_emb_width": 4}
config = AutoConfig.for_model("kimi_k25", text_config=text, vision_config=images, projection_hidden_size=16)
model = AutoModelForImageTextToText.from_config(config)
model.save_pretrained(sys.argv[1])
saved = load_file(sys.argv[1] + "/model.safetensors")
norm = "language_model.model.{}.1.input_layernorm.weight"
print("saved:", sorted(name for name in saved if name.endswith("layers.1.input_layernorm.weight") or ".blocks.1.input" in name))
assert norm.format("blocks") in saved and norm.format("layers") not in saved

def reads(tensors: dict) -> bool:
    save_file(tensors, sys.argv[1] + "/model.safetensors", {"format": "pt"})
    again, lost = AutoModelForImageTextToText.from_pretrained(sys.argv[1], output_loading_info=True)
    return not lost["missing_keys"]

published = {name.replace("language_model.model.blocks.", "language_model.model.layers."): value for name, value in saved.items()}
seen = reads(published), reads(saved)
print("reads layers, blocks:", seen)
assert seen == (True, True)
PY
"$T/venv/bin/python" "$T/save.py" "$T/model" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
echo "the behaviour is as described"
