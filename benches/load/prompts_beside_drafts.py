"""Measures the time to first token of prompts that arrive while other streams are decoded with drafts.

Usage: python3 benches/load/prompts_beside_drafts.py path/to/skein MODEL [--rounds N] [serve's flags...]
Starts two servers of one worker, with --speculate off and auto, and uses them in turn. In each round, two
greedy streams run, whose random-weight model repeats itself, so that drafts are often right; meanwhile
prompts of 64 random tokens arrive one after another. Prints the median and the 99th percentile of their times
to first token, and the tokens per second of the streams, which show that drafts were right. Exits 1 if the
99th percentile with drafts is more than 1.05 times that without.
"""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from server import serve  # noqa: E402

BOUND = 1.05
STREAMS, STREAM_TOKENS = 2, 400
PROMPT_TOKENS = 64
WAIT_SECONDS = (0.05, 0.25)
REQUEST_SECONDS = 300


def tokens_of(url: str, body: dict):
    """Yields the time at which each event with a token arrives."""
    target = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname, target.port, timeout=REQUEST_SECONDS)
    body = {"temperature": 0, "ignore_eos": True, "stream": True, **body}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    for line in answer:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
            yield time.monotonic()
    connection.close()


def round_of(url: str, draw: random.Random) -> tuple[list[float], float]:
    """Times to first token, and the duration of the streams."""
    started, ends = time.monotonic(), []

    def stream(seed: int) -> None:
        prompt = [random.Random(seed).randrange(10, 4000) for _ in range(PROMPT_TOKENS)]
        for _ in tokens_of(url, {"prompt": prompt, "max_tokens": STREAM_TOKENS}):
            pass
        ends.append(time.monotonic())

    threads = [threading.Thread(target=stream, args=(draw.random(),)) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    times = []
    time.sleep(1)
    while any(thread.is_alive() for thread in threads):
        prompt = [draw.randrange(10, 4000) for _ in range(PROMPT_TOKENS)]
        asked = time.monotonic()
        first = next(tokens_of(url, {"prompt": prompt, "max_tokens": 1}))
        times.append(first - asked)
        time.sleep(draw.uniform(*WAIT_SECONDS))
    return times, max(ends) - started


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=6)
    options, flags = parser.parse_known_args()
    sides = ["off", "auto"]
    times, seconds = {}, {}
    servers = {side: serve(options.binary, options.model, ["--speculate", side, *flags]) for side in sides}
    with servers["off"] as (_, off), servers["auto"] as (_, auto):
        urls = {"off": off, "auto": auto}
        for number in range(options.rounds):
            for side in sides if number % 2 else reversed(sides):
                got, took = round_of(urls[side], random.Random(number))
                times.setdefault(side, []).extend(got)
                seconds[side] = seconds.get(side, 0) + took
    tail, speed = {}, {}
    for side in sides:
        ordered = sorted(times[side])
        tail[side] = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        speed[side] = options.rounds * STREAMS * STREAM_TOKENS / seconds[side]
        print(
            f"{side}: {len(ordered)} prompts, p50 {statistics.median(ordered) * 1000:.0f} ms, "
            f"p99 {tail[side] * 1000:.0f} ms; streams {speed[side]:.1f} tokens/s"
        )
    assert speed["auto"] > 1.2 * speed["off"], "hardly any draft was right, so this measured nothing"
    ratio = tail["auto"] / tail["off"]
    print(f"p99 with drafts: {ratio:.2f} of that without, bound {BOUND}")
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
