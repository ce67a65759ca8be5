"""Measures the overhead of batch files: tokens per second of `skein run-batch` relative to
`skein bench throughput`.

Usage: python3 benches/load/batch_throughput.py path/to/skein [MODEL_DIR] [--rounds N] [--requests N]
           [worker's flags...]
Both answer the same number of requests of the same lengths with the same worker flags, alternately. Prints
the ratio of the medians; fails if it is below BOUND. Startup time is not counted. Needs an otherwise idle
machine.
"""

import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

from batches import line

BOUND = 0.97
PROMPT_TOKENS, ANSWER_TOKENS = 128, 128
# Token ids in this range exist in every vocabulary and are not special.
FIRST_TOKEN, END_TOKEN = 300, 4000


def write(path: pathlib.Path, requests: int, seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w") as file:
        for number in range(requests):
            prompt = [draw.randrange(FIRST_TOKEN, END_TOKEN) for _ in range(PROMPT_TOKENS)]
            body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
            file.write(line(number, body))


def finished(command: list) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def throughput(given, model: list, flags: list) -> float:
    lengths = ["--input-len", str(PROMPT_TOKENS), "--output-len", str(ANSWER_TOKENS)]
    count = ["--num-prompts", str(given.requests), "--json"]
    return json.loads(finished([given.binary, "bench", "throughput", *model, *lengths, *count, *flags]))["output_throughput"]


def run_batch(given, model: list, flags: list, turn: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        requests, answers = pathlib.Path(name) / "in.jsonl", pathlib.Path(name) / "out.jsonl"
        write(requests, given.requests, turn)
        told = finished([given.binary, "run-batch", *model, "-i", requests, "-o", answers, "--workers", "1", *flags])
    counts = re.match(r"(\d+) answered, 0 refused; (\d+) output tokens in ([0-9.]+) s", told)
    assert counts and int(counts[1]) == given.requests, told
    return int(counts[2]) / float(counts[3])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=256)
    given, flags = parser.parse_known_args()
    model = [given.model] if given.model else []
    engine, batch = [], []
    for turn in range(given.rounds):
        engine.append(throughput(given, model, flags))
        batch.append(run_batch(given, model, flags, turn))
        print(f"round {turn + 1}: bench throughput {engine[-1]:.1f}, run-batch {batch[-1]:.1f} tokens/s", flush=True)
    ratio = statistics.median(batch) / statistics.median(engine)
    print(f"run-batch is x {ratio:.3f} of bench throughput (bound {BOUND})")
    return int(ratio < BOUND)


if __name__ == "__main__":
    sys.exit(main())
