"""Measures what looking at a cluster costs: 64 workers that compute nothing, 1,000 requests a minute.

Usage: python3 benches/load/page.py path/to/skein [--chromium PATH] [--seconds N] [--rounds N]
Needs Chromium and two processors: the router has one; workers, clients and the browser share the other.
Prints shares of a processor, medians of rounds: of the router while nobody looks, while a client reads
/v1/cluster/events, and while Chromium shows the page's part Cluster; and of all processes of that Chromium.
Goal: 0.10 for the router and for Chromium.
"""

import argparse
import contextlib
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from router import cluster, cpu_seconds  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from server import family  # noqa: E402

WORKERS, REQUESTS_A_MINUTE, PROMPT, OUTPUT = 64, 1000, 512, 128
# A step of a small model on a GPU.
OF_WORKERS = ("--fake-step-time", "15ms", "--fake-kv-blocks", "4096")
WARM_UP_S = 5.0
CHROMIUM_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                  "--disable-background-networking", "--remote-debugging-port=0")


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, open_ids = [], [pid]
    while open_ids:
        at = open_ids.pop()
        found.append(at)
        open_ids += family(at)[1:]
    return found


def load(binary: str, url: str, seconds: float) -> subprocess.Popen:
    rate = REQUESTS_A_MINUTE / 60
    flags = ["--num-prompts", str(int(rate * seconds)), "--request-rate", str(rate), "--random-input-len", str(PROMPT),
             "--random-output-len", str(OUTPUT)]  # fmt: skip
    command = [binary, "bench", "serve", "--base-url", url, *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def shares(binary: str, url: str, router: int, watched: int | None, seconds: float) -> tuple[float, float]:
    """Shares of a processor of the router, and of the processes of `watched`, under the load."""
    clients = load(binary, url, seconds + WARM_UP_S + 2)
    time.sleep(WARM_UP_S)
    seen = lambda: sum(map(cpu_seconds, tree(watched))) if watched else 0.0
    began, before, before_seen = time.monotonic(), cpu_seconds(router), seen()
    time.sleep(seconds)
    took = time.monotonic() - began
    of_router, of_seen = (cpu_seconds(router) - before) / took, (seen() - before_seen) / took
    assert clients.poll() is None, "the load ended early"
    assert clients.wait(timeout=120) == 0, "requests failed"
    return of_router, of_seen


@contextlib.contextmanager
def reader(url: str):
    """Reads events meanwhile; yields the lengths of their lines."""
    counts, stop = [], threading.Event()

    def read() -> None:
        with urllib.request.urlopen(f"{url}/v1/cluster/events") as events:
            while not stop.is_set():
                counts.append(len(events.readline()))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def chromium(path: str, url: str):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [path, *CHROMIUM_FLAGS, f"--user-data-dir={folder}", url]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield browser
        finally:
            browser.send_signal(signal.SIGTERM)
            browser.wait(timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.chromium is None:
        sys.exit("no Chromium on this machine; name one with --chromium")
    with cluster(given.binary, WORKERS, (), OF_WORKERS) as (router, url, _):
        # The first requests of a router cost more: pages of the binary, connections, tables.
        shares(given.binary, url, router.pid, None, WARM_UP_S)
        measured = {"nobody looks": [], "events are read": [], "page is shown": [], "browser": []}
        for _ in range(given.rounds):
            measured["nobody looks"].append(shares(given.binary, url, router.pid, None, given.seconds)[0])
            with reader(url) as counts:
                measured["events are read"].append(shares(given.binary, url, router.pid, None, given.seconds)[0])
            with chromium(given.chromium, f"{url}/ui/#cluster") as browser:
                of_router, of_browser = shares(given.binary, url, router.pid, browser.pid, given.seconds)
            measured["page is shown"].append(of_router)
            measured["browser"].append(of_browser)
        print(f"a snapshot has up to {max(counts)} bytes")
        for name, values in measured.items():
            what = "browser" if name == "browser" else f"router while {name}"
            print(f"{what}: {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
