#!/usr/bin/env python3
"""usage: tokenizers.py SKEIN

Serves copies of the shipped model with a hostile tokenizer.json. Each must be refused at start, with a reason
and without using much memory, or serve every prompt within the limit.
"""

import json
import pathlib
import resource
import subprocess
import sys
import tempfile

from server import MODEL, Server

MOST_MIB = 512
START_TIMEOUT_S = 120

TENFOLD = {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 10}
RARE = {"type": "Replace", "pattern": {"String": "qzj"}, "content": "qzj" * 10}
EMPTY = {"type": "Replace", "pattern": {"String": ""}, "content": "y" * 10_000}
SPLIT = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
MARKS = [{"type": "Metaspace", "replacement": c, "prepend_scheme": "always", "split": False} for c in "▁▂" * 12]


def several(kind: str, steps: list) -> dict:
    return {"type": "Sequence", kind: steps}


FILES = {
    "as shipped": {},
    "twelve tenfold replacements": {"normalizer": several("normalizers", [TENFOLD] * 12)},
    "the same, of a rare word": {"normalizer": several("normalizers", [RARE] * 12)},
    "an empty pattern": {"normalizer": EMPTY},
    "a long prefix": {"normalizer": {"type": "Prepend", "prepend": "y" * 1_000_000}},
    "forty byte-level steps": {"normalizer": several("normalizers", [{"type": "ByteLevel"}] * 40)},
    "marks before pieces": {"pre_tokenizer": several("pretokenizers", [s for m in MARKS for s in (SPLIT, m)])},
    "a decoder that multiplies": {"decoder": several("decoders", [TENFOLD] * 12)},
}
PROMPTS = ["x", "x" * 1000, "qzj" * 300, "qzj" * 20_000, "é深 " * 300, " " * 20_000]


def hostile(directory: pathlib.Path, change: dict) -> pathlib.Path:
    for file in MODEL.iterdir():
        (directory / file.name).symlink_to(file)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text()) | change
    path.unlink()
    path.write_text(json.dumps(tokenizer))
    return directory


def attempt(skein: str, name: str, model: pathlib.Path) -> bool:
    flags = [skein, "serve", "--model", model, "--workers", "1", "--port", "0"]
    try:
        start = subprocess.run(flags, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, timeout=3)
        print(f"{name:<28} refused at start ({start.returncode}): {start.stderr.strip().splitlines()[-1][-140:]}", flush=True)
        return start.returncode == 3
    except subprocess.TimeoutExpired:
        pass
    with Server(skein, "--model", str(model), "--workers", "1") as server:
        answers = [server.call("POST", "/v1/completions", {"prompt": p, "max_tokens": 1})[0] for p in PROMPTS]
        server.call("GET", "/readyz")
        peak = server.memory_mib("VmHWM")
        print(f"{name:<28} serves, peak {peak:.0f} MiB, answers {answers}", flush=True)
        return peak <= MOST_MIB and set(answers) <= {200, 400}


def main() -> int:
    passed = True
    for name, change in FILES.items():
        with tempfile.TemporaryDirectory() as directory:
            passed &= attempt(sys.argv[1], name, hostile(pathlib.Path(directory), change))
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"largest process of all: {children:.0f} MiB")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
