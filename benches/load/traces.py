"""Measures the cost of traces and metrics by OTLP in throughput and in processor time per request.

Usage: python3 benches/load/traces.py path/to/skein [--rounds N] [--requests N] [--ratio R]
Each round starts two clusters of a router and one fake worker and loads them in turn with `skein bench
serve`. One exports the metrics and the fraction R of the traces (default 0.05) to a sink in this process, the
other exports nothing. Metrics for Prometheus are always enabled. Prints the median of the rounds' ratios;
exits 1 if one is below 0.98. Needs an otherwise idle machine.
"""

import argparse
import contextlib
import http.server
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from server import cpu_seconds, family, serve  # noqa: E402

TARGET = 0.98
CONCURRENCY = 32
# Two processes of the same binary can differ by 5% for their lifetime, so each round starts new ones.
RUNS_OF_A_PAIR = 4
BENCH_SECONDS = 300


class Sink(http.server.BaseHTTPRequestHandler):
    """A collector that accepts and discards everything."""

    taken = 0

    def do_POST(self) -> None:
        Sink.taken += len(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing; the default is a line per batch."""


def run(binary: str, server: subprocess.Popen, url: str, requests: int) -> tuple[float, float]:
    """Requests per second, and requests per processor second of the router and its worker."""
    used = lambda: sum(map(cpu_seconds, family(server.pid)))
    command = [binary, "bench", "serve", "--base-url", url, "--num-prompts", str(requests)]
    shape = ["--random-input-len", "64", "--random-output-len", "16", "--max-concurrency", str(CONCURRENCY)]
    before = used()
    done = subprocess.run([*command, *shape], capture_output=True, text=True, timeout=BENCH_SECONDS)
    took = used() - before
    found = re.search(r"Requests/s\s+([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found[1]), requests / took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--ratio", type=float, default=0.05)
    given = parser.parse_args()
    sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    exporting = [f"--otlp-endpoint=http://127.0.0.1:{sink.server_port}", "--otlp-protocol=http/protobuf"]
    flags = {"without": [], "with": [*exporting, f"--trace-ratio={given.ratio}"]}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in flags}
    for number in range(given.rounds):
        # The two alternate, and each goes first equally often.
        order = list(flags) if number % 2 == 0 else list(flags)[::-1]
        with contextlib.ExitStack() as stack:
            fake = ["--workers", "1", "--device", "fake"]
            clusters = {name: stack.enter_context(serve(given.binary, None, [*fake, *flags[name]])) for name in order}
            for cluster in clusters.values():
                run(given.binary, *cluster, given.requests)
            turns = [name for _ in range(RUNS_OF_A_PAIR) for name in order]
            runs = [(name, run(given.binary, *clusters[name], given.requests)) for name in turns]
        for name in flags:
            each = [figures for of, figures in runs if of == name]
            measured[name].append(tuple(statistics.median(figures[at] for figures in each) for at in (0, 1)))
        print(*(f"{name} {of[-1][0]:.0f}/s {of[-1][1]:.0f}/cpu s" for name, of in measured.items()), sep=", ", flush=True)
    assert Sink.taken > 0, "nothing was exported"
    print(f"load average {os.getloadavg()[0]:.1f}; {Sink.taken} bytes exported")
    ratios = []
    for at, unit in enumerate(["requests a second", "requests a second of processor time"]):
        pairs = list(zip(measured["with"], measured["without"]))
        each = sorted(one[at] / other[at] for one, other in pairs)
        ratios.append(statistics.median(each))
        print(f"{unit}: median ratio of {len(each)} rounds {ratios[-1]:.3f}, from {each[0]:.3f} to {each[-1]:.3f}")
    sys.exit(min(ratios) < TARGET)


if __name__ == "__main__":
    main()
