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
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
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
def cluster(binary: str, workers: int = WORKERS, flags: tuple[str, ...] = (), of_workers: tuple[str, ...] = ()):
    """Yields the process of a router before `workers` workers, and its URL."""
    first = free_ports(workers + 1)
    port = first + workers
    addresses = ",".join(f"127.0.0.1:{first + nth}" for nth in range(workers))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    worker = [binary, "worker", "--device", "fake", "--fake-workers", str(workers), "--listen", f"127.0.0.1:{first}",
              "--log-level", "error", *(of_workers or LONG_CONTEXTS)]
    router = [binary, "router", "--workers", addresses, "--port", str(port), "--log-level", "error", *flags]
    started = []
    try:
        started.append(subprocess.Popen(worker, **quiet))
        os.sched_setaffinity(0, {0})  # inherited by the router
        started.append(subprocess.Popen(router, **quiet))
        os.sched_setaffinity(0, {1})
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(started[1], url)
        time.sleep(1 + workers / 200)
        yield started[1], url
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
    with cluster(binary, workers) as (router, url):
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
    with cluster(binary) as (_, url):
        ttft(binary, url, 1, 200)
        report = ttft(binary, url, 2)
        print(f"first: TTFT p50 {report['median_ttft_ms'] * 1e3:.0f} us, p99 {report['p99_ttft_ms'] * 1e3:.0f} us")


def idle(binary: str) -> None:
    with cluster(binary) as (router, _):
        allocated = memory(router.pid, "Anonymous")
        print(f"idle: {allocated / 1e6:.1f} MB allocated, {memory(router.pid) / 1e6:.1f} MB with pages of the binary")


ROWS = {name: None for name in ("ids", "short", "long", "streams", "64", "256", "1000")}
ROWS |= {"first": first, "idle": idle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    os.sched_setaffinity(0, {1})
    for name in args.rows:
        measure = ROWS[name]
        if measure:
            measure(args.binary)
        else:
            throughput(args.binary, name)


if __name__ == "__main__":
    main()
