"""Measures a router before fake workers: requests and streams a second, processor time and memory.

Usage: python3 benches/load/router.py path/to/skein [--rows NAME...]
Needs wrk (Debian: apt-get install wrk) and two processors: the router has one, the workers and the clients
have the other. All workers are in one process and compute nothing. If both processors are threads of one
core, they take time from each other.

    ids        prompts of 32 token ids, one token, 64 connections
    short      prompts of 127 bytes of text, one token
    long       prompts of 16 KiB of text of which the first half is one of 16, one token
    streams    prompts of 32 token ids, streams of 64 tokens
    64, 256, 1000     ids with that many workers
    first      100 requests a second of 128 ids: time to the first token
    idle       memory of the router before its first request
    slow       1,000 clients that read a byte a second of 30,000 tokens, a token in 50 ms: `first` without
               them, with them, and once their buffers are full; memory of a slow stream
    many       10,000 streams of a token a second: memory of a stream, also 20 seconds later, processor time,
               and what remains after they end
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from server import cpu_seconds, wait_until_ready  # noqa: E402

WORKERS, SECONDS, CONNECTIONS, ROUNDS = 8, 5, 64, 3
# A fake device with a clock has a longer context.
LONG_CONTEXTS = ("--fake-step-time", "1us", "--fake-kv-blocks", "20000")
BODIES = {
    "ids": '"prompt":[\'..ids(32)..\'],"max_tokens":1',
    "short": '"prompt":"\'..words(127)..\'","max_tokens":1',
    "long": '"prompt":"\'..beginnings[math.random(16)]..words(8192)..\'","max_tokens":1',
    "streams": '"prompt":[\'..ids(32)..\'],"max_tokens":64,"stream":true',
}
SCRIPT = """
wrk.method, wrk.headers["content-type"] = "POST", "application/json"
math.randomseed(SEED)
local all = {}
for at = 1, 2000 do
  local letters = {}
  for letter = 1, math.random(2, 9) do letters[letter] = string.char(math.random(97, 122)) end
  all[at] = table.concat(letters)
end
function ids(count)
  local list = {}
  for at = 1, count do list[at] = math.random(10, 4000) end
  return table.concat(list, ",")
end
function words(bytes)
  local list, length = {}, 0
  while length < bytes do
    local word = all[math.random(2000)]
    list[#list + 1], length = word, length + #word + 1
  end
  return table.concat(list, " "):sub(1, bytes)
end
beginnings = {}
for at = 1, 16 do beginnings[at] = words(8192) end
-- Making a long body takes the client's time, so the first ones are made before the clock starts.
local made = {}
for at = 1, MADE do made[at] = wrk.format(nil, "/v1/completions", nil, '{BODY,"temperature":0,"ignore_eos":true}') end
local nth = 0
function request()
  nth = nth + 1
  if nth <= MADE then return made[nth] end
  return wrk.format(nil, "/v1/completions", nil, '{BODY,"temperature":0,"ignore_eos":true}')
end
"""


def free_ports(count: int) -> int:
    """The first of `count` ports that are free together."""
    for first in range(20_000, 60_000, count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return first
            except OSError:
                continue
    sys.exit(f"no {count} free ports")


def memory(pid: int, of: str = "Rss") -> int:
    """Resident bytes of a process, or those of a kind: "Anonymous" is what it has allocated."""
    with open(f"/proc/{pid}/smaps_rollup") as sums:
        return next(int(line.split()[1]) << 10 for line in sums if line.startswith(f"{of}:"))


@contextlib.contextmanager
def cluster(binary: str, workers: int = WORKERS, flags: tuple[str, ...] = (), of_workers: tuple[str, ...] = (),
            scheme: str = "http", workers_by: str | None = None):
    """Yields the process of a router before `workers` workers, its URL, and the process of the workers, which
    are those of the binary `workers_by` if it is given."""
    first = free_ports(workers + 1)
    port = first + workers
    addresses = ",".join(f"127.0.0.1:{first + nth}" for nth in range(workers))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    worker = [workers_by or binary, "worker", "--device", "fake", "--fake-workers", str(workers), "--listen", f"127.0.0.1:{first}",
              "--log-level", "error", *(of_workers or LONG_CONTEXTS)]
    router = [binary, "router", "--workers", addresses, "--port", str(port), "--log-level", "error", *flags]
    started = []
    try:
        os.sched_setaffinity(0, {1})  # of the first cluster, too: else its workers take from the router
        started.append(subprocess.Popen(worker, **quiet))
        os.sched_setaffinity(0, {0})  # inherited by the router
        started.append(subprocess.Popen(router, **quiet))
        os.sched_setaffinity(0, {1})
        url = f"{scheme}://127.0.0.1:{port}"
        wait_until_ready(started[1], url)
        time.sleep(1 + workers / 200)
        yield started[1], url, started[0]
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # streams are open that nobody reads
                process.kill()
                process.wait()


def wrk(url: str, row: str, seed: int) -> tuple[float, int]:
    """Requests a second, and the number of requests."""
    made = 3000 if row == "long" else 0
    script = SCRIPT.replace("BODY", BODIES[row]).replace("SEED", str(seed)).replace("MADE", str(made))
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", file.name, url]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "Non-2xx" not in said and "Socket errors" not in said, said
    count = next(int(line.split()[0]) for line in said.splitlines() if "requests in" in line)
    return next(float(line.split()[1]) for line in said.splitlines() if "Requests/sec" in line), count


def throughput(binary: str, name: str) -> None:
    workers, row = (int(name), "ids") if name.isdigit() else (WORKERS, name)
    tokens = 64 if row == "streams" else 1
    with cluster(binary, workers) as (router, url, _):
        rates, costs = [], []
        for round_ in range(ROUNDS):
            before = cpu_seconds(router.pid)
            rate, count = wrk(url, row, 1 + round_)
            rates.append(rate)
            costs.append((cpu_seconds(router.pid) - before) / count)
        cost = statistics.median(costs)
        per = f"{cost / tokens * 1e6:.2f} CPU s per million tokens" if tokens > 1 else f"{cost * 1e3:.3f} CPU s per 1,000"
        print(f"{name}: {statistics.median(rates):.0f}/s ({min(rates):.0f} to {max(rates):.0f}), {per}", flush=True)


def ttft(binary: str, url: str, seed: int, count: int = 1000) -> dict:
    """Report of `skein bench serve` with 100 requests a second."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "report.json")
        flags = ["--num-prompts", str(count), "--request-rate", "100", "--random-input-len", "128", "--random-output-len", "2"]
        command = [binary, "bench", "serve", "--base-url", url, *flags, "--seed", str(seed), "--result-filename", out]
        subprocess.run(command, check=True, capture_output=True)
        with open(out) as file:
            return json.load(file)


def first(binary: str) -> None:
    with cluster(binary) as (_, url, _):
        ttft(binary, url, 1, 200)
        report = ttft(binary, url, 2)
        print(f"first: TTFT p50 {report['median_ttft_ms'] * 1e3:.0f} us, p99 {report['p99_ttft_ms'] * 1e3:.0f} us")


def idle(binary: str) -> None:
    with cluster(binary) as (router, _, _):
        allocated = memory(router.pid, "Anonymous")
        print(f"idle: {allocated / 1e6:.1f} MB allocated, {memory(router.pid) / 1e6:.1f} MB with pages of the binary")


class Readers:
    """Clients that each read one stream, `chunk` bytes at most in every `pause` seconds."""

    def __init__(self, url: str, count: int, tokens: int, chunk: int, pause: float):
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": list(range(10, 42)), "max_tokens": tokens, "stream": True, "temperature": 0,
                           "ignore_eos": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.chunk, self.pause, self.failed, self.stop = chunk, pause, 0, threading.Event()
        self.sockets = []
        for nth in range(count):
            client = socket.socket()
            if chunk == 1:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall((head + body).encode())
            self.sockets.append(client)
            if nth % 100 == 99:  # a crowd, but not all in one moment
                time.sleep(0.25)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self) -> None:
        waiting = {client.fileno(): client for client in self.sockets}
        poll = select.epoll()
        for number in waiting:
            poll.register(number, select.EPOLLIN)
        while not self.stop.wait(self.pause):
            for number, _ in poll.poll(0, len(waiting) or 1):
                data = waiting[number].recv(self.chunk)
                if not data or b'"error"' in data:  # it ended, which none should
                    self.failed += 1
                    poll.unregister(number)
                    waiting[number].close()

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        for client in self.sockets:
            client.close()


def settled(pid: int, most: float = 0.05) -> None:
    """Waits until a process uses less than `most` of a processor."""
    used = math.inf
    while used > most:
        before = cpu_seconds(pid)
        time.sleep(2)
        used = (cpu_seconds(pid) - before) / 2


def shown(report: dict, count: int) -> str:
    failed = count - report["completed"]
    return f"TTFT p50 {report['median_ttft_ms']:.2f} ms, p99 {report['p99_ttft_ms']:.2f} ms, {failed} of {count} failed"


ROUTER_FOR_MANY = ("--max-num-queued-reqs", "20000", "--max-num-queued-tokens", "1000000000", "--request-timeout", "24h")


def slow(binary: str) -> None:
    clients = 1000
    workers = ("--fake-step-time", "50ms", "--fake-kv-blocks", "260000", "--max-num-seqs", "1024")
    with cluster(binary, flags=ROUTER_FOR_MANY, of_workers=workers) as (router, url, _):
        ttft(binary, url, 1, 300)
        print(f"slow: without: {shown(ttft(binary, url, 2), 1000)}", flush=True)
        before = memory(router.pid, "Anonymous")
        readers = Readers(url, clients, 30_000, 1, 1.0)
        time.sleep(5)
        print(f"slow: with them: {shown(ttft(binary, url, 3), 1000)}", flush=True)
        settled(router.pid)
        each = (memory(router.pid, "Anonymous") - before) / clients
        print(f"slow: with full buffers: {shown(ttft(binary, url, 4), 1000)}; {each / 1e3:.1f} KB a stream, {readers.failed} ended")
        readers.close()


def many(binary: str) -> None:
    clients = 10_000
    workers = ("--fake-step-time", "1s", "--fake-kv-blocks", "200000", "--max-num-seqs", "2048",
               "--max-num-queued-reqs", "2048")
    with cluster(binary, flags=ROUTER_FOR_MANY, of_workers=workers) as (router, url, _):
        before = memory(router.pid, "Anonymous")
        readers = Readers(url, clients, 600, 65536, 0.05)
        time.sleep(30)
        used = cpu_seconds(router.pid)
        time.sleep(20)
        used = (cpu_seconds(router.pid) - used) / 20
        held, alive = memory(router.pid, "Anonymous"), clients - readers.failed
        time.sleep(20)
        later, ended = memory(router.pid, "Anonymous"), readers.failed - (clients - alive)
        readers.close()
        time.sleep(15)
        after = memory(router.pid, "Anonymous")
        print(f"many: {alive} streams, {(held - before) / alive / 1e3:.1f} KB each, 20 s later {(later - before) / alive / 1e3:.1f}; "
              f"{used:.2f} of a processor, {ended} ended; after their end {(after - before) / 1e6:.1f} MB remain")


ROWS = {name: None for name in ("ids", "short", "long", "streams", "64", "256", "1000")}
ROWS |= {"first": first, "idle": idle, "slow": slow, "many": many}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # inherited by the router and the workers
    os.sched_setaffinity(0, {1})
    for name in args.rows:
        measure = ROWS[name]
        if measure:
            measure(args.binary)
        else:
            throughput(args.binary, name)


if __name__ == "__main__":
    main()
