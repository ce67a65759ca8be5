#!/usr/bin/env bash
# Guess: a SentencePiece file says in itself whether its model is BPE or unigram, so every library that
# reads it finds the same pieces, whatever the tokenizer's class.
# Seen: transformers 5.24.0 reads tokenizer.model under LlamaTokenizer as BPE always. For a unigram file it
# makes up merges from the pieces and joins by them, without a word: in a vocabulary with a piece for "the",
# "the cat" begins with three pieces instead of one. All ids are valid, so a model only gets worse.
# sentencepiece 0.2.3 encodes the file as the unigram model that it is. A BPE file gives the same pieces in
# both.
# Run with transformers 5.24.0, tokenizers 0.23.3, sentencepiece 0.2.3, protobuf 7.36.2, without torch; a
# download of 50 MB, and 20 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
cat >"$T/pieces.py" <<'PY'
import io
import json
import pathlib
import sys

import sentencepiece
from transformers import AutoTokenizer

root = pathlib.Path(sys.argv[1])
LINES = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog met on the road",
         "there is no other road to the mill"] * 50
TEXTS = ["the cat sat on the mat", "there is no other road", "to the mill"]


def train(kind):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type=kind, vocab_size=320, byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2)
    return model.getvalue()


def of_transformers(kind, model):
    folder = root / kind
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "legacy": False}))
    return AutoTokenizer.from_pretrained(folder)


differ = {}
for kind in ("bpe", "unigram"):
    model = train(kind)
    own, other = sentencepiece.SentencePieceProcessor(model_proto=model), of_transformers(kind, model)
    differ[kind] = 0
    for text in TEXTS:
        right, got = own.encode(text, out_type=str), other.tokenize(text)
        differ[kind] += right != got
        print(f"{kind}: {right}" + ("" if right == got else f", but transformers {got}"))
assert differ == {"bpe": 0, "unigram": len(TEXTS)}, differ
PY
"$T/v/bin/python" "$T/pieces.py" "$T" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
echo "the behaviour is as described"
