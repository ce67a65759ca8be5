"""Makes LoRA adapters for some of the tiny models with PEFT, and the outputs of transformers with them.

    pip install --no-deps peft==0.21.2 accelerate==1.15.0 psutil
    python adapters.py
"""

import json
import shutil

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import weights
from models import HERE, MODELS, one_line_per_key, quiet, save

POSITIONS = [0, 1, 16, 31, 39]

# name: (model, LoraConfig)
CASES = {
    "llama-all": ("llama-gqa", {"r": 4, "lora_alpha": 8, "target_modules":
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]}),
    "phi3-fused": ("phi3-v5", {"r": 8, "lora_alpha": 16, "use_rslora": True, "alpha_pattern": {"layers.1.mlp.down_proj": 4},
        "rank_pattern": {"gate_up_proj": 2}, "target_modules": ["qkv_proj", "gate_up_proj", "down_proj"]}),
    "nemotron-parts": ("nemotron-h", {"r": 2, "lora_alpha": 4, "target_modules":
        ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]}),
    "qwen3-5-all": ("qwen3-5", {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj",
        "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "gate_proj", "up_proj", "down_proj"]}),
    "qwen3-next-fused": ("qwen3-next", {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"]}),
    "lfm2-all": ("lfm2", {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "in_proj", "out_proj", "w1", "w2", "w3"]}),
    "granite-hybrid-all": ("granite-hybrid", {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj",
        "in_proj", "out_proj", "input_linear", "output_linear"]}),
    # Matrices that may be changed beside the model: none of layers with states, no queries with gates.
    "qwen3-5-served": ("qwen3-5", {"r": 2, "lora_alpha": 4, "target_modules": r".*(self_attn\.(k|v|o)_proj|mlp\.\w+_proj)"}),
    "lfm2-served": ("lfm2", {"r": 2, "lora_alpha": 4, "target_modules": r".*(self_attn\.\w+_proj|feed_forward\.w[123])"}),
    "granite-hybrid-served": ("granite-hybrid", {"r": 2, "lora_alpha": 4, "target_modules": r".*self_attn\.\w+_proj"}),
    "glm-rotated": ("glm", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj"]}),
}


@torch.no_grad()
def make_one(name):
    base, config = CASES[name]
    stored = MODELS[base][0]
    path = HERE / "adapters" / name
    shutil.rmtree(path, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(weights.complete(HERE / "models" / base), dtype=torch.float32, attn_implementation="eager").eval()
    torch.manual_seed(sum(name.encode()))
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **config)).eval()
    for key, value in model.named_parameters():
        if "lora_" in key:
            value.copy_(0.2 * torch.randn(value.shape))
    model.save_pretrained(path, save_embedding_layers=False)
    (path / "README.md").unlink(missing_ok=True)
    config = json.loads((path / "adapter_config.json").read_text()) | {"base_model_name_or_path": base}
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    prompt = torch.randint(2, model.config.vocab_size, (1, 40), generator=torch.Generator().manual_seed(5))
    logits = model(prompt).logits[0]
    whole = model.merge_and_unload()
    merged = whole(prompt).logits[0]
    # Unmerged and merged logits give the same tokens if their difference is smaller than the top-2 margin.
    assert (logits - merged).abs().max() < 1e-4 and (logits.argmax(-1) == merged.argmax(-1)).all()
    # Merging into 16-bit weights rounds the sum once more.
    state = {key: value.to(getattr(torch, stored)).float() for key, value in whole.state_dict().items()}
    whole.load_state_dict(state)
    rounded = whole(prompt).logits[0]
    save({"logits": logits[POSITIONS], "rounded_logits": rounded[POSITIONS]}, path / "goldens.safetensors")
    (path / "goldens.json").write_text(one_line_per_key({"model": base, "prompt": prompt[0].tolist(), "positions": POSITIONS}))
    print(f"{name}: logits std {logits.std():.2f}, {sum(f.stat().st_size for f in path.iterdir()) / 1024:.0f} KiB")


if __name__ == "__main__":
    quiet()
    for name in CASES:
        make_one(name)
