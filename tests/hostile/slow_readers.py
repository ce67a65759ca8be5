#!/usr/bin/env python3
"""usage: slow_readers.py SKEIN [SECONDS]

Sixteen clients request wide streams (16 samples, 20 log-probabilities) and read nothing, and a hundred read
one byte per second. Meanwhile all requests of another client must be answered.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from server import Server

UNREAD = 16
SLOW = 100
NEW = 24
# Unloaded, such a request takes tens of milliseconds. Here it first waits for seats that the wide calls
# occupy; the bound is for a development build on a busy machine.
ANSWER_WITHIN_S = 120.0
WIDE = {"prompt": "def f():", "n": 16, "logprobs": 20, "max_tokens": 200, "stream": True, "ignore_eos": True}
LONG = {"prompt": "def f():", "max_tokens": 400, "stream": True, "ignore_eos": True}
SMALL = {"prompt": "import ", "max_tokens": 8}


def sip(streams, stop):
    """Reads a byte per second from each stream."""
    while not stop.wait(1.0):
        for stream in streams:
            stream.setblocking(False)
            try:
                stream.recv(1)
            except OSError:
                pass  # nothing there yet


def ask(server):
    start = time.monotonic()
    try:
        status, _ = server.call("POST", "/v1/completions", SMALL, ANSWER_WITHIN_S)
    except OSError:
        status = None
    return status, time.monotonic() - start


def attack(server, name, open_streams, seconds):
    before = server.memory_mib()
    streams, stop = open_streams(), threading.Event()
    reader = threading.Thread(target=sip, args=(streams if name.endswith("slow") else [], stop))
    reader.start()
    answers, end = [], time.monotonic() + seconds
    time.sleep(1.0)
    with ThreadPoolExecutor(4) as clients:
        while not answers or time.monotonic() < end:
            answers += clients.map(lambda _: ask(server), range(NEW))
    stop.set()
    reader.join()
    right = sum(status == 200 for status, _ in answers)
    times = sorted(took for _, took in answers)
    print(
        f"{name}: {right} of {len(answers)} new requests answered, p50 {times[len(times) // 2]:.2f} s, "
        f"slowest {times[-1]:.2f} s; router {before:.0f} MiB before, {server.memory_mib():.0f} after",
        flush=True,
    )
    for stream in streams:
        stream.close()
    return right == len(answers)


def main(skein, seconds="3"):
    with Server(skein, "--workers", "1") as server:
        ask(server)
        wide = lambda: [server.open("/v1/completions", WIDE | {"seed": at}) for at in range(UNREAD)]
        slow = lambda: [server.open("/v1/completions", LONG | {"seed": at}) for at in range(SLOW)]
        passed = attack(server, f"{UNREAD} unread", wide, float(seconds))
        passed &= attack(server, f"{SLOW} slow", slow, float(seconds))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
