"""Loads models/skein-7m's tokenizer with files that declare more tokens; writes added_tokens.json.

Usage: added_tokens.py   (transformers, as in requirements.txt)
"""

import json
import pathlib
import shutil
import tempfile

from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
SHIPPED = HERE.parent.parent / "models/skein-7m/tokenizer.json"
TEXT = "a<|x|> <|y|>the<|end|> <|z|>b"


def token(content: str, **options) -> dict:
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content, **plain, **options}


CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024}
# What the files beside tokenizer.json have.
CASES = {
    "added_tokens_decoder": {"tokenizer_config.json": {"added_tokens_decoder": {
        "4097": token("<|y|>", special=False), "4096": token("<|x|>")}}},
    "ids that are not the next ones": {"tokenizer_config.json": {"added_tokens_decoder": {
        "4200": token("<|x|>"), "4300": token("<|y|>", special=False)}}},
    "a token of the vocabulary": {"tokenizer_config.json": {"added_tokens_decoder": {"4096": token("the")}}},
    "a token that strips": {"tokenizer_config.json": {"added_tokens_decoder": {"4096": token("<|x|>", rstrip=True)}}},
    "added_tokens.json": {"added_tokens.json": {"<|y|>": 4097, "<|x|>": 4096}},
    "both files": {"added_tokens.json": {"<|y|>": 4097}, "tokenizer_config.json": {"added_tokens_decoder": {"4096": token("<|x|>")}}},
    "additional_special_tokens": {"tokenizer_config.json": {"additional_special_tokens": ["<|x|>", token("<|y|>", __type="AddedToken")]}},
    "extra_special_tokens": {"tokenizer_config.json": {"extra_special_tokens": ["<|x|>", "<|y|>"]}},
    "named extra_special_tokens": {"tokenizer_config.json": {"extra_special_tokens": {"image_token": "<|x|>"}}},
    "a named token": {"tokenizer_config.json": {"eos_token": "<|x|>", "pad_token": token("<|y|>", __type="AddedToken")}},
    "a named token of the vocabulary": {"tokenizer_config.json": {"eos_token": "the"}},
    "special_tokens_map.json": {"special_tokens_map.json": {"eos_token": "<|x|>", "additional_special_tokens": ["<|y|>"]}},
    "special_tokens_map.json beside added_tokens_decoder": {
        "special_tokens_map.json": {"eos_token": "<|x|>"}, "tokenizer_config.json": {"added_tokens_decoder": {"4096": token("<|y|>")}}},
}


def result(files: dict) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        shutil.copy(SHIPPED, folder)
        for name, content in {"tokenizer_config.json": {}, **files}.items():
            content = {**CONFIG, **content} if name == "tokenizer_config.json" else content
            (folder / name).write_text(json.dumps(content))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer.encode(TEXT, add_special_tokens=False)
        return {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True)}


def main() -> None:
    cases = [{"name": name, "files": files, **result(files)} for name, files in CASES.items()]
    golden = json.dumps({"text": TEXT, "cases": cases}, separators=(",", ":"), ensure_ascii=False)
    (HERE / "added_tokens.json").write_text(golden + "\n")


if __name__ == "__main__":
    main()
