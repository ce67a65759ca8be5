"""Held-out perplexity of a model directory, and samples: the figures of README.md.

    python evaluate.py [--model DIR] [--samples]

Weights are widened to float32 and computed in float32, as in Skein's CPU backend. For each length, the
held-out files are cut into windows of that many tokens, each after a `<|bos|>`; perplexity is exp of the mean
loss.
"""

import argparse
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

import packed
import train

PROMPTS = ["def read_config(path):\n", "class Stack:\n    \"\"\"A last-in, first-out queue.\"\"\"\n\n    def __init__(self):\n",
           "import unittest\n\nclass TestJoin(unittest.TestCase):\n", "The import statement combines two operations; it"]
QUESTIONS = ["Hello", "What does os.path.join do?", "What does len do?", "Write a function that adds two numbers.",
             "Write a Python function that checks whether a number is prime.", "What is collections.OrderedDict?",
             "What does json.dumps do?", "What is the capital of France?"]


@torch.no_grad()
def losses(model, stream, length: int, limit: int):
    """Loss at each position, [windows, length], in nats."""
    windows = torch.from_numpy(np.stack(stream.windows(length, limit)))
    out = []
    for rows in windows.split(max(1, 8192 // length)):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        out.append(F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none"))
    return torch.cat(out)


def sample(model, tokenizer, text: str, special: bool, tokens: int, **how):
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=not special).ids])
    out = model.generate(ids, max_new_tokens=tokens, pad_token_id=train.PAD, **how)[0, ids.shape[1]:].tolist()
    return tokenizer.decode(out), out[-1] in (train.EOS, train.END)


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--model", type=pathlib.Path, default=train.HERE)
    flags.add_argument("--lengths", type=int, nargs="*", default=[256, 512, 1024, 2048])
    flags.add_argument("--limit-tokens", type=int, default=65536, help="of each kind and length")
    flags.add_argument("--samples", action="store_true")
    args = flags.parse_args()
    if args.model == train.HERE:
        packed.unpack()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    data = train.streams(tokenizer) if args.lengths else {}
    for length in args.lengths:
        for kind, splits in data.items():
            if "held_out" not in splits:
                continue
            nats = losses(model, splits["held_out"], length, args.limit_tokens // length)
            tail = nats[:, -min(256, length // 2):].mean().item()
            print(f"length {length:5}  {kind:6} loss {nats.mean():.4f}  perplexity {math.exp(nats.mean()):8.2f}  "
                  f"last positions {tail:.4f}  {nats.numel()} tokens", flush=True)
    if args.samples:
        torch.manual_seed(1)
        for question in QUESTIONS:
            prompt = f"<|bos|><|user|>{question}<|end|><|assistant|>"
            answer, ended = sample(model, tokenizer, prompt, True, 160, do_sample=False)
            print(f"--- {question}\n{answer}{'' if ended else ' [cut at 160 tokens]'}")
        for prompt in PROMPTS:
            text, _ = sample(model, tokenizer, prompt, False, 120, do_sample=True, temperature=0.7, top_p=0.9, top_k=0)
            print(f"=== {prompt}>>>{text}")


if __name__ == "__main__":
    main()
