#!/usr/bin/env python3
"""usage: anywhere.py SKEIN

The binary alone, copied away from its repository, serves the shipped model from any directory: with an empty home,
without a home, and with a home that cannot be written.
"""

import os
import pathlib
import shutil
import sys
import tempfile

from server import Server

BODY = {"prompt": "import ", "max_tokens": 8, "temperature": 0}


def main(skein):
    texts = []
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        binary = directory / "skein"
        shutil.copy(skein, binary)
        home, closed = directory / "home", directory / "closed"
        home.mkdir()
        closed.mkdir(mode=0o555)
        (directory / "file").touch()
        plain = {"PATH": os.environ["PATH"]}
        cases = {
            "an empty home, from /": (plain | {"HOME": str(home)}, "/"),
            "the same home again": (plain | {"HOME": str(home)}, str(closed)),
            "no home": (plain | {"HOME": ""}, "/"),
            # A file as a home cannot be written by root either.
            "a home that is a file": (plain | {"HOME": str(directory / "file"), "XDG_CACHE_HOME": ""}, "/tmp"),
        }
        for case, (env, cwd) in cases.items():
            with Server(str(binary), "--workers", "1", env=env, cwd=cwd) as server:
                status, answer = server.call("POST", "/v1/completions", BODY)
                text = answer.decode().split('"text":"')[-1][:30]
            print(f"{case}: {status}, {text!r}", flush=True)
            texts.append((status, text))
    return int(len(set(texts)) != 1 or texts[0][0] != 200)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
