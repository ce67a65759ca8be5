"""Streams of random prompts against a server's `/v1/completions`, and their throughput."""

import concurrent.futures
import http.client
import json
import random
import time
import urllib.parse

PROMPT_TOKENS = 64
REQUEST_SECONDS = 300


def send(url: str, model: str | None, output_tokens: int, seed: int) -> int:
    """Runs a request of 64 random tokens, greedy; returns its number of output tokens."""
    draw = random.Random(seed)
    body = {
        "prompt": [draw.randrange(10, 4000) for _ in range(PROMPT_TOKENS)],
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    if model is not None:
        body["model"] = model
    place = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=REQUEST_SECONDS)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    read = json.loads(answer.read())
    assert answer.status == 200, read
    connection.close()
    return read["usage"]["completion_tokens"]


def run(
    url: str, at_once: int, count: int, output_tokens: int, seed: int, models: list[str] | None = None
) -> float:
    """Output tokens a second of `count` requests, `at_once` at a time; request i is for `models[i]`."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        asked = zip(models or [None] * count, range(seed, seed + count))
        tokens = sum(pool.map(lambda one: send(url, one[0], output_tokens, one[1]), asked))
    return tokens / (time.monotonic() - begin)
