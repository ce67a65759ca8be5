"""Measures what a chat costs against a completion of the same text: processor time of the router and of the
worker, and latency, per request.

Usage: python3 benches/load/chat_cost.py path/to/skein [--rounds N] [--requests N]
One server with one worker answers blocks of requests in turn, one request at a time over one connection: a
chat, a completion of its message, and a completion of exactly the chat's token ids. No two prompts share a
block of cache. Processor times are means over all rounds, because a tick is longer than a request; latencies
are medians of the rounds' medians.
"""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from server import cpu_seconds, family, serve  # noqa: E402

KINDS = ["chat", "text", "token ids"]
# Words of a message.
SHORT, LONG = 12, 400
COMMON = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
WORDS = "return value list number file name with the each sum of and if then loop open read write text".split()


def message(chance: random.Random, words: int) -> str:
    """A text whose first words are its own, so that no cached prefix fits."""
    return f"{chance.getrandbits(64):x} " + " ".join(chance.choice(WORDS) for _ in range(words))


def call(connection: http.client.HTTPConnection, path: str, body: dict) -> dict:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return json.loads(text)


def prepared(connection: http.client.HTTPConnection, kind: str, text: str) -> tuple[str, dict]:
    """Path and body of a request."""
    messages = [{"role": "user", "content": text}]
    match kind:
        case "chat":
            return "/v1/chat/completions", {"messages": messages, **COMMON}
        case "text":
            return "/v1/completions", {"prompt": text, **COMMON}
        case _:
            tokens = call(connection, "/tokenize", {"messages": messages})["tokens"]
            return "/v1/completions", {"prompt": tokens, **COMMON}


def block(connection, pids: list[int], requests: list[tuple[str, dict]]) -> dict[str, float]:
    """Milliseconds a request: processor time of the router and of the worker, and latency."""
    before, latencies, tokens = [cpu_seconds(pid) for pid in pids], [], 0
    for path, body in requests:
        began = time.perf_counter()
        answer = call(connection, path, body)
        latencies.append(1e3 * (time.perf_counter() - began))
        tokens += answer["usage"]["prompt_tokens"]
    router, *workers = (1e3 * (cpu_seconds(pid) - was) / len(requests) for pid, was in zip(pids, before))
    return {
        "router": router, "worker": sum(workers), "latency": statistics.median(latencies),
        "tokens": tokens / len(requests),
    }


def measure(server, url: str, words: int, rounds: int, requests: int) -> None:
    address = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    chance, pids = random.Random(1), family(server.pid)
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for number in range(-1, rounds):
        # Each kind is first in as many rounds as the others.
        for kind in KINDS[number % 3:] + KINDS[:number % 3]:
            ready = [prepared(connection, kind, message(chance, words)) for _ in range(requests)]
            figures = block(connection, pids, ready)
            # The first round warms up.
            if number >= 0:
                found[kind].append(figures)
    def of(kind: str) -> dict[str, float]:
        each = {name: [figures[name] for figures in found[kind]] for name in found[kind][0]}
        return {name: (statistics.median if name == "latency" else statistics.mean)(of) for name, of in each.items()}

    of_kind = {kind: of(kind) for kind in KINDS}
    for kind, figures in of_kind.items():
        print(f"{words} words, {kind}: {figures['tokens']:.0f} prompt tokens, router {figures['router']:.2f} ms, "
              f"worker {figures['worker']:.2f} ms, latency {figures['latency']:.2f} ms")
    for other in KINDS[1:]:
        ratio = {name: of_kind["chat"][name] / of_kind[other][name] for name in ["router", "worker", "latency"]}
        print(f"  chat / {other}: " + ", ".join(f"{name} {times:.2f}" for name, times in ratio.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=200)
    given = parser.parse_args()
    flags = ["--workers", "1", "--threads", "1"]
    with serve(given.binary, None, flags) as (server, url):
        for words in [SHORT, LONG]:
            measure(server, url, words, given.rounds, given.requests)


if __name__ == "__main__":
    main()
