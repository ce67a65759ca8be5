"""Encodes and decodes awkward strings with Hugging Face tokenizers and skein-7m's tokenizer.json."""

import json
import pathlib

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models" / "skein-7m"

STRINGS = [
    "", " ", "  ", "\n", "\n\n\n", "\t", "\r\n", " \n \n", "a", "Hello", " Hello", "Hello, world!", "hello hello  hello   hello",
    "trailing space ", "trailing spaces   ", "   leading", "tab\tseparated\tvalues", "line one\nline two\r\nline three\rline four",
    "def add(a, b):\n    return a + b\n", "class A(B):\n\n    def f(self):\n        if self.x:\n\t\treturn None\n",
    "import os.path, sys\nfrom collections import defaultdict\n", "self.assertEqual(len(items), 3)", "__init__ __name__ == '__main__'",
    "x = {'a': [1, 2.5, -3e10], \"b\": None}", "0123456789 3.14159 1,000,000 0xFF 1_000", "CamelCase snake_case SCREAMING_CASE kebab-case",
    "don't can't I'll you're we've it's 'quoted' I'M", "!@#$%^&*()[]{};:'\",.<>/?\\|`~-_=+", "https://docs.python.org/3/library/os.path.html?q=a%20b#join",
    "user@example.org", "a" * 100, " " * 70, "=" * 79, "ab" * 40, "naïve café résumé Übergröße", "cafe\u0301 (combining acute)",
    "ﬁ ligature, ½, ², Ⅷ, ①", "Привет, мир!", "Γειά σου Κόσμε", "你好，世界。", "日本語のテキスト", "한국어 텍스트", "漢字とkanjiとかな mixed",
    "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "😀", "emoji 😀😃 in text 🎉!", "👩‍👩‍👧‍👦 family, 👍🏽 skin tone, 🇩🇪 flag",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛", "zero\u200bwidth\u200djoiner\ufeffbom", "nbsp\u00a0em\u2003space\u3000ideographic", "\u2028line separator\u2029",
    "null\x00byte", "bell\x07 escape\x1b[31m del\x7f", "\x01\x02\x03\x1f", "\u0085 next line", "replacement \ufffd char", "private use \ue000 \U0010fffd",
    "\U0010ffff last", "rtl \u202eoverride\u202c", "Z̷͖̈a̴̢͝l̶̰̽g̵̣̈́o̷͇̍", "tokens: <|bos|> and <|end|>", "<|user|>Hi<|end|><|assistant|>", "<|bos|", "< |eos| >", "<|END|>",
]

# Token runs that no encoder produces: bytes in hex, each of which becomes one token.
BYTE_RUNS = {
    "lone continuation byte": "61 80 62", "two lone continuation bytes": "80 80", "truncated emoji at the end": "61 f0 9f 98",
    "truncated emoji, then a letter": "f0 9f 98 61", "truncated emoji, then an emoji": "f0 9f f0 9f 98 80", "byte ff": "ff 61 fe",
    "overlong slash": "c0 af", "overlong three bytes": "e0 80 af", "surrogate": "ed a0 80 61", "above U+10FFFF": "f4 90 80 80",
    "emoji byte by byte": "f0 9f 98 80", "three-byte character cut by a letter": "e4 bd 61 e4 bd a0", "é byte by byte": "63 61 66 c3 a9",
    "c3 then c3 a9": "c3 c3 a9", "e2 82 then nothing": "e2 82",
}


def byte_tokens(tokenizer):
    """{byte: id of the token that consists of that byte}, by GPT-2's printable alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return {b: tokenizer.token_to_id(c) for b, c in alphabet.items()}, {c: b for b, c in alphabet.items()}


def certain(raw: bytes):
    """(text, bytes held back): the part of `raw`'s text that later bytes cannot change.

    A broken run of bytes is one U+FFFD per maximal subpart, as the Unicode standard recommends and Rust's
    `from_utf8_lossy` does. Python's incremental decoder agrees, but later: it waits for a surrogate's second
    byte.
    """
    text = ""
    while raw:
        try:
            return text + raw.decode(), b""
        except UnicodeDecodeError as error:
            text += raw[:error.start].decode()
            if error.reason == "unexpected end of data":
                return text, raw[error.start:]
            text, raw = text + "\ufffd", raw[error.end:]
    return text, b""


def pieces_of(tokenizer, ids, alphabet, special):
    """The text that becomes certain with each token, and the rest. Special tokens add nothing."""
    pieces, held = [], b""
    for token in ids:
        raw = b"" if token in special else bytes(alphabet[c] for c in tokenizer.id_to_token(token))
        piece, held = certain(held + raw)
        pieces.append(piece)
    return pieces, held.decode(errors="replace")


def make():
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    of_byte, alphabet = byte_tokens(tokenizer)
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    cases = []
    for string in STRINGS:
        ids = tokenizer.encode(string).ids
        case = {"text": string, "ids": ids}
        tokenizer.encode_special_tokens = True  # the text of a special token is then only text
        literal = tokenizer.encode(string).ids
        tokenizer.encode_special_tokens = False
        if literal != ids:
            case["ids_without_special"] = literal
        case["decoded"] = tokenizer.decode(ids, skip_special_tokens=True)
        case["decoded_with_special"] = tokenizer.decode(ids, skip_special_tokens=False)
        case["pieces"], case["rest"] = pieces_of(tokenizer, ids, alphabet, special)
        assert "".join(case["pieces"]) + case["rest"] == case["decoded"], string
        assert tokenizer.decode(literal, skip_special_tokens=True) == string
        cases.append(case)
    broken = []
    for name, text in BYTE_RUNS.items():
        ids = [of_byte[b] for b in bytes.fromhex(text)]
        pieces, rest = pieces_of(tokenizer, ids, alphabet, special)
        decoded = tokenizer.decode(ids)
        assert "".join(pieces) + rest == decoded, name
        broken.append({"name": name, "bytes": text, "ids": ids, "decoded": decoded, "pieces": pieces, "rest": rest})
    lines = lambda items: ",\n".join("  " + json.dumps(item) for item in items)
    (HERE / "tokenization.json").write_text(
        '{\n"model": "models/skein-7m",\n"strings": [\n' + lines(cases) + '\n],\n"broken": [\n' + lines(broken) + "\n]\n}\n")
    print(f"tokenization.json: {len(cases)} strings, {len(broken)} broken token runs")
