#!/usr/bin/env python3
"""usage: slow_readers.py SKEIN [SECONDS]

Sixteen clients request wide streams (16 samples, 20 log-probabilities) and read nothing, and a hundred read
one byte per second. Meanwhile all requests of another client must be answered.

The wide streams take all of a worker's seats (256) until they are computed, whether they are read or not; a
request that arrives meanwhile waits for a seat. Once they are computed, they must cost others nothing: new
requests take no longer than before, by a factor that holds on any machine.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from server import Server

UNREAD = 16
SLOW = 100
NEW = 24
# For all that waits for seats: a development build on a busy machine.
ANSWER_WITHIN_S = 120.0
# Beside streams that are computed and not read, the slowest new request may take this many times as long as
# the slowest without them, and this much more.
SLOWER = 10
SLOWER_S = 1.0
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


def ask_all(server, clients):
    """Answers of NEW requests at four a time, and their times in order."""
    answers = list(clients.map(lambda _: ask(server), range(NEW)))
    return all(status == 200 for status, _ in answers), sorted(took for _, took in answers)


def metric(server, name):
    lines = server.call("GET", "/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def wait_until_computed(server):
    """Workers report once a second, so first waits for a report that they run."""
    deadline = time.monotonic() + ANSWER_WITHIN_S
    for is_there in (lambda running: running > 0, lambda running: running == 0):
        while not is_there(metric(server, "skein_worker_running")) and time.monotonic() < deadline:
            time.sleep(0.05)


def unread(server, clients):
    """Streams that nobody reads keep no request waiting once they are computed."""
    before, (right, times) = server.memory_mib(), ask_all(server, clients)
    limit = SLOWER * times[-1] + SLOWER_S
    # Named requests have ids in their events, so that an answer is larger than the system's buffers.
    streams = [server.open("/v1/completions", WIDE | {"seed": at, "request_id": f"unread-{at}"}) for at in range(UNREAD)]
    early = clients.submit(lambda: (time.sleep(0.5), ask(server), time.monotonic()))
    wait_until_computed(server)
    computed = time.monotonic()
    _, (early_status, early_took), early_ended = early.result()
    new_right, new_times = ask_all(server, clients)
    held = metric(server, "skein_requests_in_flight")
    print(
        f"{UNREAD} unread: slowest new request {new_times[-1]:.3f} s, without them {times[-1]:.3f} s; one that came "
        f"while they were computed waited {early_took:.1f} s; router {before:.0f} MiB before, "
        f"{server.memory_mib():.0f} after",
        flush=True,
    )
    for stream in streams:
        stream.close()
    in_time = new_times[-1] <= limit and early_ended <= computed + limit
    return right and new_right and early_status == 200 and held >= UNREAD and in_time


def slow(server, clients, seconds):
    """Streams that are read at a byte a second."""
    before = server.memory_mib()
    streams, stop = [server.open("/v1/completions", LONG | {"seed": at}) for at in range(SLOW)], threading.Event()
    reader = threading.Thread(target=sip, args=(streams, stop))
    reader.start()
    all_right, times, end = True, [], time.monotonic() + seconds
    while not times or time.monotonic() < end:
        right, took = ask_all(server, clients)
        all_right, times = all_right and right, sorted(times + took)
    stop.set()
    reader.join()
    print(
        f"{SLOW} slow: {len(times)} new requests, p50 {times[len(times) // 2]:.2f} s, slowest {times[-1]:.2f} s; "
        f"router {before:.0f} MiB before, {server.memory_mib():.0f} after",
        flush=True,
    )
    for stream in streams:
        stream.close()
    return all_right


def main(skein, seconds="3"):
    with Server(skein, "--workers", "1") as server, ThreadPoolExecutor(4) as clients:
        ask(server)
        passed = unread(server, clients)
        passed &= slow(server, clients, float(seconds))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
