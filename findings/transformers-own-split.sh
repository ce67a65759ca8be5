#!/usr/bin/env bash
# Guess: a directory's tokenizer.json says how its text is split, and transformers does what it says, because
# the tokenizers library reads it.
# Seen: transformers 5.24.0 takes vocabulary and merges from that file, but splits the text with rules of the
# class that it chooses. model_type qwen2 chooses Qwen2Tokenizer, also where tokenizer_config.json names
# another class, and its rules cut numbers into digits. A model that was tuned from Qwen 2 with a tokenizer of
# its own so gets other ids than its file gives. With model_type qwen3 the class in tokenizer_config.json
# decides, and Qwen's is only what it takes when none is named. No warning is printed.
# Run with transformers 5.24.0, tokenizers 0.23.3, without torch; a download of 45 MB, and 20 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install transformers==5.24.0 tokenizers==0.23.3
cat >"$T/split.py" <<'PY'
import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {piece: at for at, piece in enumerate([*letters, "12", "123", "<|endoftext|>"])}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("1", "2"), ("12", "3")]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # a number stays in one piece
tokenizer.decoder = decoders.ByteLevel()


def tokens(model_type, named):
    folder = os.path.join(sys.argv[1], f"{model_type}-{named}")
    os.makedirs(folder)
    tokenizer.save(f"{folder}/tokenizer.json")
    json.dump({"model_type": model_type}, open(f"{folder}/config.json", "w"))
    config = {"eos_token": "<|endoftext|>"} | ({"tokenizer_class": named} if named else {})
    json.dump(config, open(f"{folder}/tokenizer_config.json", "w"))
    return AutoTokenizer.from_pretrained(folder).tokenize("x123")


whole, digits = ["x", "123"], ["x", "1", "2", "3"]
assert tokenizer.encode("x123").tokens == whole
expected = {
    ("llama", "PreTrainedTokenizerFast"): whole,
    ("llama", None): whole,
    ("qwen2", "PreTrainedTokenizerFast"): digits,
    ("qwen2", "LlamaTokenizerFast"): digits,
    ("qwen2", None): digits,
    ("qwen3", "PreTrainedTokenizerFast"): whole,
    ("qwen3", None): digits,
    ("llama", "Qwen2Tokenizer"): digits,
}
for (model_type, named), right in expected.items():
    seen = tokens(model_type, named)
    print(f"model_type {model_type}, tokenizer_class {named}: {seen}")
    assert seen == right, f"this has changed: {right} before"
PY
"$T/v/bin/python" "$T/split.py" "$T"
