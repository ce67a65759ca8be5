#!/usr/bin/env bash
# Guess: vocab.json with merges.txt is a whole tokenizer for the Qwen 3.5 family as for Qwen 2 and 3, and if
# transformers cannot use it, it says so.
# Seen: in transformers 5.24.0 a directory with those two files and model_type qwen3_5 loads without an error
# or a warning about them, and its vocabulary has one token, the padding. Every text becomes an empty list
# of ids. tokenizer_class in tokenizer_config.json changes nothing, not even Qwen2Tokenizer. The same files
# under model_type qwen2 and gpt2 have all 258 tokens and their merge. Only tokenizer.json is read for
# qwen3_5, so a checkpoint that lost this file trains or serves on nothing.
# Run with transformers 5.24.0, tokenizers 0.23.3, without torch; a download of 45 MB, and 20 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install transformers==5.24.0 tokenizers==0.23.3
cat >"$T/load.py" <<'PY'
import json
import pathlib
import sys

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

root = pathlib.Path(sys.argv[1])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {piece: at for at, piece in enumerate([*letters, "he", "<|endoftext|>"])}


def load(model_type, named):
    folder = root / f"{model_type}-{named}"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\n")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    config = {"tokenizer_class": named, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("hello").input_ids
    print(f"{model_type:12} {named:16} {type(tokenizer).__name__:17} {len(tokenizer):4} tokens, hello = {ids}")
    return len(tokenizer), len(ids)


whole = (len(vocabulary), len("hello") - 1)
assert load("qwen2", "Qwen2Tokenizer") == load("gpt2", "GPT2Tokenizer") == whole
for model_type, named in [("qwen3_5", "Qwen3_5Tokenizer"), ("qwen3_5_text", "Qwen3_5Tokenizer"), ("qwen3_5", "Qwen2Tokenizer")]:
    assert load(model_type, named) == (1, 0)
PY
"$T/v/bin/python" "$T/load.py" "$T" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
if grep -i "vocab\|merges" "$T/errors"; then
  echo "transformers says something of the files now"
  exit 1
fi
echo "the behaviour is as described"
