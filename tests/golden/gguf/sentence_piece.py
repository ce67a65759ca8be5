"""Makes a SentencePiece vocabulary in GGUF, and encodes awkward strings with the `sentencepiece` package.

Usage: sentence_piece.py   (pip install gguf==0.19.0 sentencepiece)

Trains a BPE model with byte fallback, like Llama 2's, on this repository's documents; writes
models/spm-vocab.gguf like llama.cpp's converter, and models/spm.json. If the documents have changed, training
gives another vocabulary, so replace both files together.
"""

import ast
import json
import pathlib
import random

import gguf
import sentencepiece

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OUT = HERE / "models"
TRAINING = {
    "vocab_size": 1200, "model_type": "bpe", "byte_fallback": True, "character_coverage": 0.9995,
    "normalization_rule_name": "identity", "add_dummy_prefix": True, "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True, "split_digits": True, "num_threads": 1, "bos_id": 1, "eos_id": 2, "unk_id": 0,
}


def strings() -> list[str]:
    """The strings of ../text.py, and random mixtures of them."""
    tree = ast.parse((HERE.parent / "text.py").read_text())
    value = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "STRINGS")
    known = eval(compile(ast.Expression(value), "text.py", "eval"))  # our own file
    mix = random.Random(27)
    mixtures = []
    for _ in range(150):
        parts = [mix.choice(known)[: mix.randrange(1, 12)] for _ in range(mix.randrange(1, 8))]
        mixtures.append("".join(parts))
    # sentencepiece finds no special tokens in texts, and a NUL ends a text.
    return [text for text in known + mixtures if "\0" not in text]


def main() -> None:
    documents = sorted((ROOT / "docs" / "src").glob("*.md")) + [ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    lines = [line for path in documents for line in path.read_text().splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix="/tmp/spm", minloglevel=2, **TRAINING)
    model = sentencepiece.SentencePieceProcessor(model_file="/tmp/spm.model")
    kinds = []
    for id in range(model.vocab_size()):
        if model.is_unknown(id):
            kinds.append(gguf.TokenType.UNKNOWN)
        elif model.is_control(id):
            kinds.append(gguf.TokenType.CONTROL)
        elif model.is_byte(id):
            kinds.append(gguf.TokenType.BYTE)
        else:
            kinds.append(gguf.TokenType.NORMAL)
    writer = gguf.GGUFWriter(OUT / "spm-vocab.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([model.id_to_piece(id) for id in range(model.vocab_size())])
    writer.add_token_scores([model.get_score(id) for id in range(model.vocab_size())])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    texts = strings()
    golden = [{"text": text, "ids": model.encode(text)} for text in texts]
    (OUT / "spm.json").write_text(json.dumps(golden, ensure_ascii=True) + "\n")


main()
