"""Measures a scrape of a router with many workers.

Usage: python3 benches/load/scrape.py path/to/skein [--workers N] [--scrapes N]
Starts a router and N workers of the fake backend (default 64) as processes, sends some requests, and scrapes
the router. Prints the fastest, median and slowest scrape, its size, and the router's processor time for one.
Exits 1 if the processor time is above the target; the duration of a scrape depends on other load and does not
count.
"""

import argparse
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

TARGET_MS = 20
READY_SECONDS = 300
REQUESTS = 200
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Cluster:
    def __init__(self, binary: str, workers: int) -> None:
        self.processes: list[subprocess.Popen] = []
        self.ports = free_ports(workers + 1)
        for port in self.ports[1:]:
            self.start(binary, "worker", "--device=fake", f"--listen=127.0.0.1:{port}")
        listed = ",".join(f"127.0.0.1:{port}" for port in self.ports[1:])
        self.start(binary, "router", f"--workers={listed}", f"--port={self.ports[0]}")
        self.router = self.processes[-1].pid
        self.url = f"http://127.0.0.1:{self.ports[0]}"

    def start(self, *command: str) -> None:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes.append(subprocess.Popen([*command, "--log-level=error"], **quiet))

    def ready_workers(self) -> int:
        try:
            lines = urllib.request.urlopen(f"{self.url}/metrics", timeout=5).read().decode().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[-1]) for line in lines if line.startswith("skein_workers_ready{")), 0)

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for listener in held:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def measure(cluster: Cluster, scrapes: int) -> None:
    times, size = [], 0
    before = processor_seconds(cluster.router)
    idle_from = time.monotonic()
    for _ in range(scrapes):
        start = time.perf_counter()
        size = len(urllib.request.urlopen(f"{cluster.url}/metrics", timeout=30).read())
        times.append((time.perf_counter() - start) * 1e3)
    scraping = time.monotonic() - idle_from
    used = processor_seconds(cluster.router) - before
    # Worker reports also cost the router time; measure its use over the same period without scrapes.
    before = processor_seconds(cluster.router)
    time.sleep(scraping)
    used -= processor_seconds(cluster.router) - before
    each = used / scrapes * 1e3
    print(f"load average {os.getloadavg()[0]:.1f}; a scrape has {size} bytes")
    print(f"until the answer, ms: fastest {min(times):.1f}, median {statistics.median(times):.1f}, slowest {max(times):.1f}")
    print(f"processor time of the router for a scrape: {each:.2f} ms (target {TARGET_MS})")
    sys.exit(each > TARGET_MS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--scrapes", type=int, default=300)
    given = parser.parse_args()
    cluster = Cluster(given.binary, given.workers)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while cluster.ready_workers() < given.workers:
            if time.monotonic() > deadline:
                sys.exit(f"{cluster.ready_workers()} of {given.workers} workers are ready after {READY_SECONDS} s")
            time.sleep(0.5)
        shape = ["--num-prompts", str(REQUESTS), "--random-input-len", "64", "--random-output-len", "16"]
        command = [given.binary, "bench", "serve", "--base-url", cluster.url, *shape]
        subprocess.run(command, check=True, capture_output=True, timeout=READY_SECONDS)
        time.sleep(5)  # until the workers have told their totals
        measure(cluster, given.scrapes)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
