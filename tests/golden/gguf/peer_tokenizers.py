"""Asks llama.cpp which tokens end an answer, and how its rules split text into words.

Writes models/peer_tokenizers.json.

Usage: peer_tokenizers.py   (pip install gguf==0.19.0 llama-cpp-python==0.3.36)

Words cannot be read from the library, so each text has a vocabulary in which any two neighbouring bytes
merge, the first pair of the text first: a boundary of words shows as a merge that did not happen. Tokens then
have one or two bytes, and a golden is their lengths.
"""

import ctypes
import json
import pathlib
import re
import tempfile

import gguf
import llama_cpp

HERE = pathlib.Path(__file__).resolve().parent
# Without letters with case outside ASCII, for which llama.cpp's expressions differ from the models' own.
TEXTS = [
    "It's 12345678 x86_64, I'LL  see\n\n  caf\u00e9 \u6df1\u3044 \u0e2a\u0e32 <=> $a+b|c; \t\nend.. ",
    "def f(x):\n    return {'k': [1.5, 22]}\r\n\r\n// a/b \u2026\u300c\u6f22\u5b57\u300d\ud55c\uae00 \u0663\u0664 THE fooBar   \n",
    "aB xyZq he'den I'Mo \u0e01\u0e47b ++\n\n\n1234x .\r\n    \t   z!/\n!  \u6f22\u5b57",
]
PARAMS = llama_cpp.llama_model_default_params()
PARAMS.vocab_only = True
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
OURS = "<|END_OF_TURN_TOKEN|>"  # which llama.cpp does not know
# So that ids that a file need not name (BOS 1, EOS 2; 11) are none of the tokens asked about.
FILLER = [f"filler{i}" for i in range(16)]


def alphabet() -> list[str]:
    """GPT-2's character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(rest)) for byte in range(256)]


def load(tokens, types, merges, **fields):
    """The vocabulary of a file with these tokens."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        writer = gguf.GGUFWriter(file.name, "llama")
        for key, value in fields.pop("text", {}).items():
            writer.add_string(key, value)
        for key, value in fields.pop("ids", {}).items():
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
        writer.add_tokenizer_model(fields.pop("kind", "gpt2"))
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_merges(merges or ["a a"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        model = llama_cpp.llama_model_load_from_file(file.name.encode(), PARAMS)
    return model and llama_cpp.llama_model_get_vocab(model)


def tokenize(vocab, text, bos=False):
    out = (llama_cpp.llama_token * 4096)()
    data = text.encode()
    return out[: llama_cpp.llama_tokenize(vocab, data, len(data), out, 4096, bos, True)]


def rules(names):
    """Names with the same lengths of tokens and the same BOS."""
    letters, groups = alphabet(), {}
    for name in names:
        lengths, bos = [], None
        for text in TEXTS:
            chars = [letters[byte] for byte in text.encode()]
            pairs = list(dict.fromkeys(zip(chars, chars[1:])))
            tokens = letters + [a + b for a, b in pairs]
            fields = {"text": {"tokenizer.ggml.pre": name} if name else {}, "ids": {"bos": 33, "eos": 34}}
            vocab = load(tokens, [NORMAL] * len(tokens), [f"{a} {b}" for a, b in pairs], **fields)
            if not vocab:
                break
            lengths.append("".join(str(len(tokens[id])) for id in tokenize(vocab, text)))
            bos = bool(llama_cpp.llama_vocab_get_add_bos(vocab))
        if len(lengths) == len(TEXTS):
            groups.setdefault((bos, *lengths), []).append(name)
    return [{"names": names, "bos": bos, "lengths": lengths} for (bos, *lengths), names in groups.items()]


def ends(cases):
    """For each list of tokens: those that end an answer, and those that a text is searched for."""
    out = []
    for kind, *texts in cases:
        tokens = FILLER + alphabet() + texts
        types = [NORMAL] * (len(tokens) - len(texts)) + [kind] * len(texts)
        vocab = load(tokens, types, [], ids={"eos": 0, "bos": 1})
        found = range(len(tokens) - len(texts), len(tokens))
        is_end = [tokens[id] for id in found if llama_cpp.llama_vocab_is_eog(vocab, id)]
        whole = [tokens[id] for id in found if tokenize(vocab, f"a{tokens[id]}b")[1:-1] == [id]]
        out.append({"type": kind, "tokens": texts, "ends": is_end, "whole": whole})
    return out


def phi3(name):
    """What a file of this name makes of white space after special tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581a", "<|end|>", "<|user|>", "<|endoftext|>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[6] * 256, *[NORMAL] * 3, CONTROL, USER_DEFINED, CONTROL]
    vocab = load(tokens, types, [], kind="llama", text={"general.name": name})
    texts = ["<|end|>\n a", "<|user|> \t\na", "</s> a", "<s> a", "<unk>  a", "<|endoftext|> a", "a <|end|>", "<|end|> \n<|user|>\na"]
    return {"name": name, "tokens": tokens[259:], "texts": {text: list(tokenize(vocab, text)) for text in texts}}


def gemma4():
    """Ids of texts with a vocabulary of Gemma 4's kind: characters, bytes, and merges in the file's order."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, CONTROL, CONTROL, *[6] * 256]
    merges = []
    for word in ("\u2581the", "\u2581\u2581\u2581\u2581", "\n\n\n", "he", "\u2581a", "caf\u00e9", "12", "er", "th", "ther", "\u2581that"):
        parts = list(word)
        tokens += [part for part in dict.fromkeys(parts) if part not in tokens]
        while len(parts) > 1:
            # The pair that is known already, else the first.
            known = next((at for at in range(len(parts) - 1) if f"{parts[at]} {parts[at + 1]}" in merges), None)
            at = 0 if known is None else known
            merges += [] if known is not None else [f"{parts[at]} {parts[at + 1]}"]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
            tokens += [] if parts[at] in tokens else [parts[at]]
    types += [NORMAL] * (len(tokens) - len(types))
    vocab = load(tokens, types, merges, kind="gemma4", ids={"bos": 2, "eos": 1, "unknown": 3})
    texts = ["the other cat", "  the    that ", "a\n\n\n\nthe\n12 caf\u00e9 \u6f22\u5b57", "<bos>that<|turn>he 112\r\n\tthe<turn|>\n", "\u2581the <unk>", ""]
    return {"tokens": tokens, "types": types, "merges": merges, "texts": {text: list(tokenize(vocab, text, bos=True)) for text in texts}}


def main() -> None:
    llama_cpp.llama_log_set(LOG, ctypes.c_void_p(0))
    source = (HERE.parents[2] / "gguf/src/word_rules.rs").read_text()
    known = [name for names in re.findall(r"names: &\[(.*?)\]", source, re.S) for name in re.findall(r'"([^"]+)"', names)]
    special = (HERE.parents[2] / "gguf/src/special_tokens.rs").read_text()
    texts = re.findall(r'"([^" ]*[<\[][^" ]*)"', special.split("/// Ids of a SentencePiece")[0])
    alone = [(kind, text) for text in texts if text != OURS for kind in (NORMAL, CONTROL, USER_DEFINED)]
    same = [[golden["ends"], golden["whole"]] for golden in ends(alone)]
    assert all(same[at] == same[at + 1] == same[at + 2] for at in range(0, len(same), 3)), "by text alone"
    together = [
        (CONTROL, "<|end|>", "<|return|>"), (CONTROL, "<|end|>", "<|call|>"), (NORMAL, "<|end|>", "<|return|>", "<|call|>"),
        (CONTROL, "<|end|>", "<|return|>", "<|calls|>"), (CONTROL, "<|end|>", "<|flush|>"), (CONTROL, "<|end|>", "<|call|>", "<|flush|>"),
        (CONTROL, "<|end|>", "<|calls|>", "<|flush|>"), (CONTROL, "</s>", "<|tool_response>"), (CONTROL, "</s>", "<|im_end|>"),
        (NORMAL, "<|plain|>"), (CONTROL, "<|plain|>"),
    ]
    found = {
        "ends": [golden["tokens"][0] for golden in ends((NORMAL, text) for text in texts) if golden["ends"]],
        "controls": [golden["tokens"][0] for golden in ends((NORMAL, text) for text in texts) if golden["whole"]],
        "together": ends(together),
        "phi3": [phi3("Phi 3"), phi3("My Phi-3 mini")],
        "gemma4": gemma4(),
        "texts": TEXTS,
        "rules": rules([*dict.fromkeys(known), ""]),
    }
    (HERE / "models/peer_tokenizers.json").write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


@llama_cpp.llama_log_callback
def LOG(level, text, data):
    """llama.cpp says much."""


if __name__ == "__main__":
    main()
