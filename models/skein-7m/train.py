"""Trains skein-7m on the CPU and writes it, in Hugging Face form, beside this script.

    pip install -r requirements.txt
    python train.py --minutes 90
    python packed.py pack               # makes the form of the weights that is committed

The schedule is a fraction of the wall clock, not a step count: learning rate, context length and end depend
on the minutes passed, so a run on a busy machine still ends on time with its learning rate at the bottom. So
two runs never give the same weights. `--resume` continues from the last checkpoint.
"""

import argparse
import json
import os
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

import corpus

HERE = pathlib.Path(__file__).resolve().parent
SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
BOS, EOS, PAD, END = 0, 1, 2, 6
VOCAB = 4096
MAX_POSITIONS = 1024
TOKENS_PER_STEP = 4096
PEAK_LR, WARMUP_SHARE, FLOOR = 2e-3, 0.02, 0.02
# From this fraction of the time on, train with this context length.
CONTEXTS = [(0.0, 256), (0.55, 512), (0.85, 1024)]
# From this fraction of the time on, the mix of every batch's rows: first to learn to write, then also to
# answer.
MIXES = [(0.0, {"lib": 0.62, "tests": 0.26, "chat": 0.08, "asked": 0.04}),
         (0.5, {"lib": 0.50, "tests": 0.18, "chat": 0.10, "asked": 0.22})]
CHAT_TEMPLATE = (
    "{{- bos_token -}}\n"
    "{%- for message in messages -%}\n"
    "    {%- if message['role'] not in ['system', 'user', 'assistant'] -%}\n"
    "        {{- raise_exception('skein-7m knows the roles system, user and assistant, not ' + message['role']) -}}\n"
    "    {%- elif message['content'] is not string -%}\n"
    "        {{- raise_exception('skein-7m reads text only: content has to be a string') -}}\n"
    "    {%- endif -%}\n"
    "    {{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "    {{- '<|assistant|>' -}}\n"
    "{%- endif -%}\n"
)
# For chats with tools, added after the training: the model has never seen one. A grammar writes its calls.
TOOL_TEMPLATE = (
    "{{- bos_token + '<|system|>' -}}\n"
    "{%- if messages[0]['role'] == 'system' -%}\n"
    "    {{- messages[0]['content'] | trim + '\\n\\n' -}}\n"
    "{%- endif -%}\n"
    "{{- 'Functions that can be called:' -}}\n"
    "{%- for tool in tools -%}\n"
    "    {{- '\\n' + tool['function'] | tojson -}}\n"
    "{%- endfor -%}\n"
    "{{- '<|end|>' -}}\n"
    "{%- for message in messages -%}\n"
    "    {%- if message['role'] == 'tool' -%}\n"
    "        {{- '<|user|><tool_response>\\n' + message['content'] | trim + '\\n</tool_response><|end|>' -}}\n"
    "    {%- elif message['role'] == 'assistant' -%}\n"
    "        {{- '<|assistant|>' + (message['content'] or '') | trim -}}\n"
    "        {%- for call in message['tool_calls'] or [] -%}\n"
    "            {{- '<tool_call>\\n' + {'name': call['function']['name'], 'arguments': call['function']['arguments']} | tojson + '\\n</tool_call>' -}}\n"
    "        {%- endfor -%}\n"
    "        {{- '<|end|>' -}}\n"
    "    {%- elif message['role'] == 'user' -%}\n"
    "        {{- '<|user|>' + message['content'] | trim + '<|end|>' -}}\n"
    "    {%- elif message['role'] != 'system' or not loop.first -%}\n"
    "        {{- raise_exception('skein-7m knows the roles system (first), user, assistant and tool, not ' + message['role']) -}}\n"
    "    {%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "    {{- '<|assistant|>' -}}\n"
    "{%- endif -%}\n"
)


def train_tokenizer(texts) -> Tokenizer:
    """Byte-level BPE with GPT-2's splitting and every byte in the alphabet; prepends `<|bos|>` to every
    text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B:1", special_tokens=[("<|bos|>", BOS)])
    assert tokenizer.get_vocab_size() == VOCAB
    assert [tokenizer.token_to_id(s) for s in SPECIAL] == list(range(len(SPECIAL)))
    return tokenizer


def encode_all(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def render(messages) -> str:
    """CHAT_TEMPLATE's rendering of a whole conversation, without the leading `<|bos|>`."""
    return "".join(f"<|{m['role']}|>{m['content'].strip()}<|end|>" for m in messages)


class Stream:
    """One kind of text as a single sequence of tokens, and the positions where a training row may begin."""

    def __init__(self, documents, aligned: bool):
        self.tokens = np.concatenate([np.array(d, np.int64) for d in documents])
        self.starts = np.cumsum([0] + [len(d) for d in documents[:-1]])
        self.aligned = aligned  # begin at a document, or anywhere

    def row(self, rng: random.Random, length: int):
        """`length + 1` tokens; the first is always `<|bos|>`, as at inference."""
        last = len(self.tokens) - length
        at = int(rng.choice(self.starts)) if self.aligned else rng.randrange(last)
        row = self.tokens[min(at, last - 1):][:length + 1].copy()
        if row[0] != BOS:
            row = np.concatenate([[BOS], row[:length]])
        return row

    def windows(self, length: int, limit: int):
        """Non-overlapping windows of `length` tokens, at most `limit`, each after a `<|bos|>`."""
        count = min(limit, len(self.tokens) // length)
        return [np.concatenate([[BOS], self.tokens[i * length:(i + 1) * length]]) for i in range(count)]


def streams(tokenizer):
    """Tokenises the corpus, once: {kind: {split: Stream}}."""
    out = {}
    for kind, splits in corpus.sections().items():
        out[kind] = {}
        for split, documents in splits.items():
            if not documents:
                continue
            talk = kind in ("chat", "asked")
            if talk:
                documents = [[BOS] + ids for ids in encode_all(tokenizer, [render(m) for m in documents])]
            else:
                documents = [[BOS] + ids + [EOS] for ids in encode_all(tokenizer, documents)]
            random.Random(3).shuffle(documents)
            out[kind][split] = Stream(documents, aligned=talk)
    return out


def fresh_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=MAX_POSITIONS, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=BOS, eos_token_id=[EOS, END], pad_token_id=PAD, initializer_range=0.02, use_cache=False))


def loss_of(model, rows):
    """Mean cross entropy of rows [batch, length + 1], in nats per token."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.reshape(-1, VOCAB), rows[:, 1:].reshape(-1))


@torch.no_grad()
def evaluate(model, data, length=256, limit=48):
    """Held-out loss of each kind."""
    out = {}
    for kind, splits in data.items():
        if "held_out" not in splits:
            continue
        windows = torch.from_numpy(np.stack(splits["held_out"].windows(length, limit)))
        parts = windows.split(max(1, TOKENS_PER_STEP // length))
        out[kind] = sum(loss_of(model, part).item() * len(part) for part in parts) / len(windows)
    return out


def learning_rate(share: float) -> float:
    """Linear warm-up, then linear decay to FLOOR of the peak at share 1."""
    if share < WARMUP_SHARE:
        return PEAK_LR * max(share / WARMUP_SHARE, 0.02)
    return PEAK_LR * (FLOOR + (1 - FLOOR) * (1 - (share - WARMUP_SHARE) / (1 - WARMUP_SHARE)))


def replace(path: pathlib.Path, write):
    """Writes `path` atomically: a reader sees the whole old file or the whole new one."""
    part = path.with_name(path.name + ".part")
    write(part)
    part.chmod(0o644)  # safetensors makes files only their owner may read
    os.replace(part, path)


def export(model, tokenizer, out: pathlib.Path, dtype=torch.bfloat16):
    """Writes the model directory: weights in `dtype`, config, tokenizer, chat template."""
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 256,
        "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": MAX_POSITIONS, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "attention_dropout": 0.0,
        "mlp_bias": False, "tie_word_embeddings": True, "initializer_range": 0.02, "bos_token_id": BOS,
        "eos_token_id": [EOS, END], "pad_token_id": PAD, "use_cache": True,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    generation = {"bos_token_id": BOS, "eos_token_id": [EOS, END], "pad_token_id": PAD, "do_sample": True,
                  "temperature": 0.7, "top_p": 0.9}
    special = {"content": None, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_POSITIONS, "bos_token": SPECIAL[BOS],
        "eos_token": SPECIAL[EOS], "pad_token": SPECIAL[PAD], "additional_special_tokens": SPECIAL[3:],
        "clean_up_tokenization_spaces": False, "chat_template": [
            {"name": "default", "template": CHAT_TEMPLATE}, {"name": "tool_use", "template": TOOL_TEMPLATE}],
        "added_tokens_decoder": {str(i): special | {"content": s} for i, s in enumerate(SPECIAL)},
    }
    tensors = {name: t.detach().to(dtype).contiguous() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    for name, value in [("config.json", config), ("generation_config.json", generation),
                        ("tokenizer_config.json", tokenizer_config)]:
        replace(out / name, lambda p, v=value: p.write_text(json.dumps(v, indent=2) + "\n"))
    replace(out / "tokenizer.json", lambda p: tokenizer.save(str(p)))
    replace(out / "model.safetensors", lambda p: save_file(tensors, str(p), metadata={"format": "pt"}))


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--minutes", type=float, default=90)
    flags.add_argument("--threads", type=int, default=2)
    flags.add_argument("--out", type=pathlib.Path, default=HERE)
    flags.add_argument("--work", type=pathlib.Path, default=pathlib.Path("skein-7m-work"), help="checkpoints go here")
    flags.add_argument("--first-export-minutes", type=float, default=5, help="write a first model directory this early")
    flags.add_argument("--resume", action="store_true")
    flags.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    args = flags.parse_args()
    began = time.time()
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)

    tokenizer_path = args.work / "tokenizer.json"
    if args.resume:
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
    else:
        parts = corpus.sections()
        tokenizer = train_tokenizer(parts["lib"]["train"] + parts["tests"]["train"][::3]
                                    + [m["content"] for kind in ("chat", "asked") for c in parts[kind]["train"] for m in c])
        tokenizer.save(str(tokenizer_path))
    data = streams(tokenizer)
    for kind, splits in data.items():
        print(kind, {split: len(stream.tokens) for split, stream in splits.items()}, "tokens", flush=True)

    model = fresh_model()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=PEAK_LR, betas=(0.9, 0.95), fused=True)
    step, tokens, spent = 0, 0, 0.0
    if args.resume:
        state = torch.load(args.work / "checkpoint.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, tokens, spent = state["step"], state["tokens"], state["seconds"]
        began = time.time()
    compute = torch.compile(loss_of, dynamic=False) if args.compile else loss_of
    rng = random.Random(11 + step)
    total = args.minutes * 60
    elapsed = lambda: spent + time.time() - began

    def save_state():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "tokens": tokens,
                 "seconds": elapsed()}
        replace(args.work / "checkpoint.pt", lambda p: torch.save(state, p))

    running, counted, last_log, last_save, exported = 0.0, 0, time.time(), time.time(), args.resume
    while elapsed() < total:
        share = elapsed() / total
        length = [length for since, length in CONTEXTS if share >= since][-1]
        mix = [mix for since, mix in MIXES if share >= since][-1]
        kinds = rng.choices(list(mix), list(mix.values()), k=TOKENS_PER_STEP // length)
        rows = [data[kind]["train"].row(rng, length) for kind in kinds]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(share)
        loss = compute(model, torch.from_numpy(np.stack(rows)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step, tokens = step + 1, tokens + TOKENS_PER_STEP
        running, counted = running + loss.item(), counted + 1
        if step % 50 == 0:
            rate = counted * TOKENS_PER_STEP / (time.time() - last_log)
            print(f"{elapsed() / 60:6.1f} min  step {step}  {tokens / 1e6:.2f}M tokens  length {length}  "
                  f"lr {learning_rate(share):.1e}  loss {running / counted:.3f}  {rate:.0f} tokens/s", flush=True)
            running, counted, last_log = 0.0, 0, time.time()
        if not exported and elapsed() > args.first_export_minutes * 60:
            export(model, tokenizer, args.out)
            exported = True
        if time.time() - last_save > 240:
            print("   held out", {k: round(v, 3) for k, v in evaluate(model, data).items()}, flush=True)
            save_state()
            last_save = time.time()
    save_state()
    export(model, tokenizer, args.out)
    export(model, tokenizer, args.work / "f32", dtype=torch.float32)
    print(f"done: {step} steps, {tokens} tokens, {elapsed() / 60:.1f} min", flush=True)
    print("held out", evaluate(model, data, limit=400), flush=True)


if __name__ == "__main__":
    main()
