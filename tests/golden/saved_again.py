"""Loads the tiny models with transformers and saves them again, and keeps how their config.json changes: the
spellings that today's version writes. Tensors keep their names and shapes, which this script checks.

    pip install transformers==5.24.0
    python saved_again.py [directory]      keeps the saved models and their goldens there, too

To compare the logits of those:

    TEST_SAVED_AGAIN=directory cargo test -p skein-worker --test cpu_model -- saved_again --nocapture
"""

import json
import pathlib
import shutil
import sys
import tempfile

import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM

import weights
from models import HERE, quiet

# Written for all models, or without a meaning for logits.
SILENT = ("transformers_version", "attention_dropout", "dtype", "torch_dtype", "router_aux_loss_coef", "router_jitter_noise",
          "pretraining_tp", "embd_pdrop", "resid_pdrop", "embedding_dropout", "residual_dropout")

# The only models of families that version 4 did not know.
ALONE = ("qwen3-5", "qwen3-5-moe")


def tensors(path: pathlib.Path) -> dict:
    found = {}
    for file in path.glob("model*.safetensors"):
        with safe_open(file, "pt") as opened:
            found |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
    return found


def change(name: str, to: pathlib.Path) -> dict:
    """Saves the model to `to`; returns the fields of config.json that went, and those that are new."""
    source = weights.complete(HERE / "models" / name)
    AutoModelForCausalLM.from_pretrained(source, dtype="auto", attn_implementation="eager").save_pretrained(to)
    for golden in source.glob("goldens.*"):
        shutil.copy(golden, to)
    before, after = (json.loads((path / "config.json").read_text()) for path in (source, to))
    # Codes are saved as numbers. Kimi Linear's dense networks are saved under the names of its mixtures.
    one_name = lambda of: {key.replace(".mlp.", ".block_sparse_moe."): shape for key, shape in of.items()}
    of_same = one_name if name == "kimi-linear" else dict
    assert "quantization_config" in before or of_same(tensors(source)) == of_same(tensors(to)), name
    return {"gone": [field for field in before if field not in after and field not in SILENT],
            "new": {field: value for field, value in after.items() if value != before.get(field) and field not in SILENT}}


def is_text_alone(path: pathlib.Path) -> bool:
    """Whether the text model is not a part of one that also takes images, which would be lost."""
    return "text_config" not in json.loads((path / "config.json").read_text())


def main():
    quiet()
    with tempfile.TemporaryDirectory() as temporary:
        to = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        changes = {path.name: change(path.name, to / path.name) for path in sorted((HERE / "models").iterdir()) if is_text_alone(path)}
    # Those of version 5 change little, and are kept if their family has no other.
    is_kept = lambda name, of: of["gone"] or name.removesuffix("-v5") not in changes or name in ALONE
    lines = [f"{json.dumps(name)}: {json.dumps(of, separators=(',', ':'))}" for name, of in changes.items() if is_kept(name, of)]
    text = f'{{"transformers": "{transformers.__version__}",\n"models": {{\n' + ",\n".join(lines) + "\n}}\n"
    (HERE / "saved_again.json").write_text(text)
    print(f"{len(lines)} of {len(changes)} models kept, {len(text)} bytes")


if __name__ == "__main__":
    main()
