#!/usr/bin/env python3
"""Requests with values that could become labels: models, ids, paths, methods, keys of every kind.

    tests/hostile/label_values.py target/release/skein              # 20,000 requests
    tests/hostile/label_values.py target/release/skein 1000000      # the long form

Fails if the number of series or the router's memory grows with them, or if a scrape takes long.
"""

import http.client
import json
import random
import sys
import time

from server import Server

DEFAULT_REQUESTS = 20_000
SERIES_GROWTH = 60  # routes, methods and classes of status that had not been seen
MEMORY_GROWTH_MIB = 24
SCRAPE_LIMIT_S = 0.1  # on a busy machine; the script prints what it was
LETTERS = 'abcXYZ019-_."\\{}=,%é\U0001f600'


def text(rng, length):
    return "".join(rng.choice(LETTERS) for _ in range(length))


def token(rng, length):
    """Random text that is valid in a path, a header or a method."""
    return "".join(rng.choice("abcXYZ019-_.") for _ in range(length))


def hostile(rng, connection):
    """Sends a request that is refused, with a unique value in every field."""
    kind, value = rng.randrange(4), token(rng, rng.randrange(1, 60))
    headers = {"content-type": "application/json", "x-request-id": value, "user-agent": value,
               "authorization": f"Bearer {value}", "traceparent": f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01",
               "x-gateway-inference-objective": value, "x-skein-worker": value}  # fmt: skip
    body = b""
    method, path = "POST", "/v1/completions"
    if kind == 0:
        body = ('{"prompt": "a", "model": %s}' % json.dumps(text(rng, 20))).encode()
    elif kind == 1:
        body = ('{"prompt": "a", "request_id": %s, "temperature": -1, %s: 1}' % (json.dumps(text(rng, 20)), json.dumps(text(rng, 9)))).encode()
    elif kind == 2:
        path = f"/{value}/{token(rng, 8)}?{token(rng, 8)}"
    else:
        method, path = f"M{token(rng, 6).replace('.', '')}", "/v1/models"
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def scrape(server):
    start = time.monotonic()
    _, body = server.call("GET", "/metrics")
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return len(lines), time.monotonic() - start


def attack(server, rng, count):
    connection, statuses = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60), {}
    for _ in range(count):
        status = hostile(rng, connection)
        statuses[status] = statuses.get(status, 0) + 1
    connection.close()
    return statuses


def main(skein, count=DEFAULT_REQUESTS):
    rng = random.Random(1)
    with Server(skein, "--workers", "1") as server:
        attack(server, rng, 1_000)  # buffers and routes are there from now on
        series, memory = scrape(server)[0], server.memory_mib()
        statuses = attack(server, rng, int(count))
        series_after, seconds = scrape(server)
        memory_after = server.memory_mib()
    print(f"{count} requests {statuses}: {series} series before, {series_after} after")
    print(f"{memory:.1f} MiB before, {memory_after:.1f} after; a scrape takes {1000 * seconds:.1f} ms")
    assert max(statuses) < 500, statuses
    assert series_after - series <= SERIES_GROWTH, "labels hold what clients sent"
    assert memory_after - memory <= MEMORY_GROWTH_MIB, "memory grows with the requests"
    assert seconds < SCRAPE_LIMIT_S, "a scrape takes long"


if __name__ == "__main__":
    main(*sys.argv[1:])
