"""Measures how much a batch delays other clients: their time to first token beside a batch and without one.

Usage: python3 benches/load/beside_batch.py path/to/skein [MODEL_DIR] [--rounds N] [--requests N] [--rate X]
           [--by jobs|run-batch] [serve's flags...]
Starts a server with one worker. Sends the same requests in open loop, alternately without and with a batch
that has enough lines for the whole round: a job of /v1/batches (the default), or `skein run-batch --server`.
The prefix cache is off, because the second turn would find the prompts of the first.
Prints TTFT with and without a batch over all rounds, and the ratios; fails if the ratio of the 99th
percentiles is over BOUND, or if the batch made no progress. Needs an otherwise idle machine.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from batches import call, create, line  # noqa: E402
from server import serve  # noqa: E402

BOUND = 1.1
LINES, LINE_TOKENS = 20_000, 64
PROMPT_TOKENS, ANSWER_TOKENS = 128, 32


def write_batch(path: pathlib.Path, model: str) -> None:
    body = lambda n: {"model": model, "prompt": f"Story {n} of a batch: once upon a time " * 4,
                      "max_tokens": LINE_TOKENS, "ignore_eos": True}
    path.write_text("".join(line(number, body(number)) for number in range(LINES)))


@contextlib.contextmanager
def job(_binary: str, url: str, batch: pathlib.Path):
    """Runs a batch job in the server; yields a function that counts its answers."""
    created = create(url, batch.read_bytes())["id"]
    at = lambda: call(f"{url}/v1/batches/{created}")
    try:
        yield lambda: at()["request_counts"]["completed"]
    finally:
        call(f"{url}/v1/batches/{created}/cancel", b"{}")
        while at()["status"] not in ("cancelled", "completed"):
            time.sleep(0.05)


@contextlib.contextmanager
def runner(binary: str, url: str, batch: pathlib.Path):
    """Runs a batch from a client; yields a function that counts its answers."""
    answers = batch.with_suffix(".out")
    answers.unlink(missing_ok=True)
    command = [binary, "run-batch", "-i", batch, "-o", answers, "--server", url, "--priority", "100"]
    run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield lambda: answers.read_bytes().count(b"\n") if answers.exists() else 0
    finally:
        run.terminate()
        run.wait()


def load(binary: str, url: str, given, seed: int, directory: pathlib.Path) -> list[float]:
    """TTFT in ms of each request."""
    result = directory / f"{seed}.json"
    command = [binary, "bench", "serve", "--base-url", url, "--request-rate", str(given.rate), "--seed", str(seed),
               "--num-prompts", str(given.requests), "--random-input-len", str(PROMPT_TOKENS),
               "--random-output-len", str(ANSWER_TOKENS), "--save-detailed", "--result-filename", str(result)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = json.loads(result.read_text())
    assert not any(saved["errors"]), saved["errors"]
    return [seconds * 1000 for seconds in saved["ttfts"]]


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--by", choices=["jobs", "run-batch"], default="jobs")
    given, flags = parser.parse_known_args()
    batch_of = job if given.by == "jobs" else runner
    alone, beside, answered = [], [], 0
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        batch = directory / "in.jsonl"
        flags = ["--workers", "1", "--no-enable-prefix-caching", "--batch-dir", str(directory / "batches"), *flags]
        with serve(given.binary, given.model, flags) as (_, url):
            write_batch(batch, call(f"{url}/v1/models")["data"][0]["id"])
            load(given.binary, url, given, 1000, directory)  # the scheduler measures how long steps take
            for turn in range(given.rounds):
                alone += load(given.binary, url, given, turn, directory)
                with batch_of(given.binary, url, batch) as answers:
                    while answers() == 0:
                        time.sleep(0.05)
                    before = answers()
                    beside += load(given.binary, url, given, turn, directory)
                    answered += answers() - before
                print(f"round {turn + 1}: {answered} lines of the batch so far", flush=True)
    for name, times in (("alone", alone), ("beside", beside)):
        print(f"{name:<8}" + "".join(f"  p{at} {percentile(times, at):8.1f} ms" for at in (50, 90, 99)))
    ratio = percentile(beside, 99) / percentile(alone, 99)
    median = percentile(beside, 50) / percentile(alone, 50)
    print(f"p50 x {median:.3f}, p99 x {ratio:.3f} (bound {BOUND}), {answered} lines of the batch meanwhile")
    return int(ratio > BOUND or answered == 0)


if __name__ == "__main__":
    sys.exit(main())
