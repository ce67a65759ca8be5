"""Measures the cost of constrained answers, for themselves and for concurrent streams.

Usage: python3 benches/load/constrained.py path/to/skein MODEL_DIR [--rounds N] [--tokens N]
Starts one CPU worker. Measures alternately, and compares medians over the rounds:
1. tokens per second of 32 free streams, and of 32 that follow a JSON schema (bound: 0.97 of the free ones);
2. the gaps between tokens of 31 free streams, beside a free one and beside one with slow masks (bound of p99:
   1.05 times);
3. TTFT of short free requests, beside constrained ones with cached schemas and beside ones whose schemas must
   be compiled (bound of the median: 5 ms more).
Prints the figures and exits 1 if a bound is missed. Needs an otherwise idle machine.
"""

import argparse
import concurrent.futures
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

STREAMS = 32
# Tokens of a prompt, and the bound of their ids: every vocabulary has that many.
PROMPT_TOKENS, VOCABULARY = 32, 4096
# Records longer than any answer: strings, numbers, choices and nesting.
RECORD = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 8, "maxLength": 60}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "kind": {"enum": ["person", "company", "place"]}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
    "home": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
             "required": ["street", "zip"], "additionalProperties": False}},
    "required": ["name", "age", "kind", "tags", "home"], "additionalProperties": False}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 500}
# Masks of counted strings of many alternatives took longest in tests/grammar/published.
SLOW = {"type": "array", "items": {"type": "string", "format": "hostname", "minLength": 20, "maxLength": 200}, "minItems": 500}
COMPILES = 24


class Load:
    """Requests to the server at `url`, of random tokens below `VOCABULARY`."""

    def __init__(self, url: str) -> None:
        self.host = urllib.parse.urlsplit(url).netloc

    def stream(self, tokens: int, schema: dict | None, seed: int) -> tuple[list[float], int]:
        """The start time and chunk times of a stream, and its number of tokens. Every token has its own
        chunk, because a token's id is sent even if its text is not complete."""
        draw = random.Random(seed)
        prompt = [draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]
        body = {"prompt": prompt, "max_tokens": tokens, "seed": seed, "temperature": 1, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}, "return_token_ids": True}
        if schema is not None:
            body["structured_outputs"] = {"json": schema}
        connection = http.client.HTTPConnection(self.host, timeout=600)
        times, used = [time.perf_counter()], 0
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                usage = json.loads(line[6:]).get("usage")
                used = usage["completion_tokens"] if usage else used
        return times, used

    def together(self, count: int, tokens: int, schema: dict | None, seed: int) -> list[tuple[list[float], int]]:
        with concurrent.futures.ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda at: self.stream(tokens, schema, seed + at), range(count)))

    def rate(self, tokens: int, schema: dict | None, seed: int) -> float:
        """Tokens per second from the first stream's start to the last one's end."""
        streams = self.together(STREAMS, tokens, schema, seed)
        start, end = min(times[0] for times, _ in streams), max(times[-1] for times, _ in streams)
        return sum(used for _, used in streams) / (end - start)

    def gaps_beside(self, tokens: int, slow: bool, seed: int) -> float:
        """The 99th percentile of the gaps of all but one of the streams."""
        others = threading.Thread(target=self.stream, args=(tokens, SLOW if slow else None, seed + 999))
        others.start()
        time.sleep(0.5)
        streams = self.together(STREAMS - 1, tokens // 2, None, seed)
        others.join()
        gaps = sorted(after - before for times, _ in streams for before, after in zip(times[1:], times[2:]))
        return gaps[int(len(gaps) * 0.99)]

    def first_tokens(self, compiling: bool, seed: int) -> float:
        """Median TTFT of consecutive requests."""
        done = threading.Event()

        def compile_all() -> None:
            for at in range(10_000):
                if done.is_set():
                    return
                # A new schema each time, so that none is cached; or always the same one.
                record = {**RECORD, "description": f"{seed} {at}" if compiling else "known"}
                self.stream(1, {"type": "object", "properties": {f"p{n}": record for n in range(40)}}, seed + at)

        thread = threading.Thread(target=compile_all)
        thread.start()
        time.sleep(0.2)
        firsts = []
        for at in range(COMPILES):
            times, _ = self.stream(1, None, seed + 5000 + at)
            firsts.append(times[1] - times[0])
        done.set()
        thread.join()
        return statistics.median(firsts)


def in_turn(rounds: int, one, other) -> tuple[list[float], list[float]]:
    pairs = [(one(1000 * turn), other(1000 * turn)) for turn in range(1, rounds + 1)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def told(what: str, one: list[float], other: list[float], scale: float, unit: str) -> tuple[float, float]:
    before, after = statistics.median(one), statistics.median(other)
    rows = " ".join(f"{a * scale:.1f}/{b * scale:.1f}" for a, b in zip(one, other))
    print(f"{what}: {before * scale:.1f} and {after * scale:.1f} {unit}, ratio {after / before:.3f}  ({rows})", flush=True)
    return before, after


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    rounds, tokens = arguments.rounds, arguments.tokens
    with serve(arguments.binary, arguments.model, ["--workers", "1", "--max-num-seqs", str(STREAMS + 8)]) as (_, url):
        load = Load(url)
        load.rate(8, SCHEMA, 1), load.rate(8, None, 1)
        free, held = told("32 streams, free and held", *in_turn(
            rounds, lambda seed: load.rate(tokens, None, seed), lambda seed: load.rate(tokens, SCHEMA, seed)), 1, "tokens/s")
        alone, beside = told("gap p99 of 31 free streams, beside a free and a slow one", *in_turn(
            rounds, lambda seed: load.gaps_beside(tokens, False, seed), lambda seed: load.gaps_beside(tokens, True, seed)), 1000, "ms")
        idle, compiling = told("first token, beside known schemas and beside new ones", *in_turn(
            rounds, lambda seed: load.first_tokens(False, seed), lambda seed: load.first_tokens(True, seed)), 1000, "ms")
    return int(held < 0.97 * free or beside > 1.05 * alone or compiling > idle + 0.005)


if __name__ == "__main__":
    sys.exit(main())
