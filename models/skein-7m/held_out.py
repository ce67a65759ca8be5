"""Writes held_out.bin: tokens of files that skein-7m was not trained on, for tests of perplexity.

    python held_out.py

16 consecutive windows of 513 tokens, 16-bit little-endian ids. A window starts with `<|bos|>`, followed by a
stretch of the files that `corpus.held_out` keeps from training, alternately from the library and its tests,
in the order of the paths. Needs Python 3.11.7, whose standard library is the text (PSF licence), and
tokenizers.
"""

import pathlib
import platform
import struct
import sys

from tokenizers import Tokenizer

import corpus

HERE = pathlib.Path(__file__).resolve().parent
BOS, EOS = 0, 1
WINDOWS, LENGTH = 16, 512


def stream(tokenizer, tests: bool):
    """Ids of the held-out files of one kind, each file ended by `<|eos|>`."""
    ids = []
    for name, text in corpus.library_files():
        if corpus.held_out(name) and corpus.is_test(name) == tests:
            ids += tokenizer.encode(text, add_special_tokens=False).ids + [EOS]
    return ids


def main():
    if platform.python_version() != "3.11.7":
        sys.exit(f"this is Python {platform.python_version()}; the held-out text is that of 3.11.7")
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    streams = [stream(tokenizer, tests) for tests in (False, True)]
    out = []
    for window in range(WINDOWS):
        ids, number = streams[window % 2], window // 2
        # Windows are far apart, so that they come from different files.
        start = number * ((len(ids) - LENGTH) // (WINDOWS // 2))
        out += [BOS] + ids[start:start + LENGTH]
    (HERE / "held_out.bin").write_bytes(struct.pack(f"<{len(out)}H", *out))
    print(f"{len(out)} tokens of {[len(ids) for ids in streams]}")


if __name__ == "__main__":
    main()
