"""Measures the gain of in-flight batching on real kernels: sends requests of very different lengths to one
worker, as they arrive and held back in batches.

Usage: python3 benches/load/batching_rules.py path/to/skein [MODEL_DIR] [--rounds N] [--requests N]
           [serve's flags...]
Sends N requests (default 32) at once with lengths like ShareGPT's (means of 161 and 338 tokens, log-normal),
by each rule of `skein bench serve --batching` alternately. Prints output tokens per second and the ratio of
continuous batching to each other rule; fails if it is below BOUND. Rows of ended requests cost nothing here,
while a padded batch computes them, so real static batching is slower than this. Needs an otherwise idle
machine.
"""

import argparse
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from server import serve  # noqa: E402

BOUND = 2.0
RULES = ["continuous", "static:8", "dynamic:8:50ms"]
# Means and deviations of the logarithm, as in bench/dev/src/batching/jobs.rs.
PROMPT, ANSWER = (161.31, 1.1), (337.99, 0.9)


def lengths(requests: int, longest: int) -> list[tuple[int, int]]:
    draw = random.Random(31)
    one = lambda mean, sigma: int(draw.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))
    pairs = [(max(1, one(*PROMPT)), max(4, one(*ANSWER))) for _ in range(requests)]
    pairs = [(min(prompt, longest // 4), answer) for prompt, answer in pairs]
    return [(prompt, min(answer, longest - prompt)) for prompt, answer in pairs]


def run(binary: str, url: str, rule: str, requests: int, data: pathlib.Path, result: pathlib.Path) -> float:
    command = [binary, "bench", "serve", "--base-url", url, "--batching", rule, "--num-prompts", str(requests),
               "--dataset-name", "custom", "--dataset-path", str(data), "--result-filename", str(result)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(result.read_text())["output_throughput"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--longest", type=int, default=1000, help="tokens of prompt and answer together, at most")
    given, flags = parser.parse_known_args()
    rates = {rule: [] for rule in RULES}
    with tempfile.TemporaryDirectory() as name, serve(given.binary, given.model, ["--workers", "1", *flags]) as (_, url):
        data, result = pathlib.Path(name) / "requests.jsonl", pathlib.Path(name) / "result.json"
        pairs = lengths(given.requests, given.longest)
        print(f"{given.requests} requests, {statistics.mean(p for p, _ in pairs):.0f} + "
              f"{statistics.mean(a for _, a in pairs):.0f} tokens on average, longest answer {max(a for _, a in pairs)}")
        for turn in range(given.rounds):
            # Prompts differ each time, so that none is cached.
            rows = [{"prompt": f"{turn} {index} " + "word " * prompt, "output_tokens": answer}
                    for index, (prompt, answer) in enumerate(pairs)]
            for place, rule in enumerate(RULES):
                data.write_text("".join(json.dumps(row | {"prompt": f"{place} {row['prompt']}"}) + "\n" for row in rows))
                rates[rule].append(run(given.binary, url, rule, given.requests, data, result))
            print(f"round {turn + 1}: " + ", ".join(f"{rule} {rates[rule][-1]:.1f}" for rule in RULES) + " tokens/s", flush=True)
    ours = statistics.median(rates["continuous"])
    ratios = {rule: ours / statistics.median(rates[rule]) for rule in RULES[1:]}
    print(", ".join(f"continuous is x {ratio:.2f} of {rule}" for rule, ratio in ratios.items()) + f" (bound {BOUND})")
    return int(ratios["static:8"] < BOUND)


if __name__ == "__main__":
    sys.exit(main())
