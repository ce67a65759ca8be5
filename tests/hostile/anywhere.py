#!/usr/bin/env python3
"""usage: anywhere.py SKEIN

The binary alone, copied out of its repository, must serve the shipped model from any directory. If it cannot
unpack the model, because there is no home directory or it is not writable, it must say so and what to do.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from server import START_TIMEOUT_S, Server

NO_MODEL = 3
BODY = {"prompt": "import ", "max_tokens": 8, "temperature": 0}


def main(skein):
    texts, refused = [], True
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
        }
        # If the home is a file, not even root can write to it.
        homeless = {"no home": plain, "a home that is a file": plain | {"HOME": str(directory / "file")}}
        for case, (env, cwd) in cases.items():
            with Server(str(binary), "--workers", "1", env=env, cwd=cwd) as server:
                status, answer = server.call("POST", "/v1/completions", BODY)
                text = answer.decode().split('"text":"')[-1][:30]
            print(f"{case}: {status}, {text!r}", flush=True)
            texts.append((status, text))
        for case, env in homeless.items():
            command = [str(binary), "serve", "--port", "0", "--workers", "1"]
            done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=START_TIMEOUT_S)
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            print(f"{case}: exit code {done.returncode}: {said}", flush=True)
            refused &= done.returncode == NO_MODEL and "XDG_CACHE_HOME" in said
    return int(len(set(texts)) != 1 or texts[0][0] != 200 or not refused)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
