"""Compares routers on one processor, in one run and in turn: a build, an older build, and SMG.

Usage: python3 benches/load/router_peers.py path/to/skein [--before path/to/older/skein] [--smg path/to/smg]
           [--workers-by path/to/skein]
Needs what router.py needs, and nginx for SMG's workers. The routers have processor 0; workers and clients
have processor 1. All Skein routers stand before fake workers of one build, over gRPC. SMG (`pip install smg`,
policy cache_aware) stands before an nginx that answers at once with the answer of a fake worker, on as many
ports; it takes no token ids in `/v1/completions`, so the rows `ids` and `streams` compare with text. A stream
of that nginx is 64 events in one piece, which is less work than 64 pieces.

    ids        prompts of 32 token ids, one token, 64 connections
    short      prompts of 127 bytes of text, one token
    long       prompts of 16 KiB of text of which the first half is one of 16, one token
    streams    prompts of 32 token ids, streams of 64 tokens
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
import urllib.request

import router

ROWS = ("ids", "short", "long", "streams")
WORKERS, ROUNDS = router.WORKERS, 5
# SMG refuses a request that names no model.
TEXT_STREAMS = '"prompt":"\'..words(127)..\'","max_tokens":64,"stream":true'
router.BODIES = {row: f'"model":"skein-7m",{body}' for row, body in {**router.BODIES, "text streams": TEXT_STREAMS}.items()}
ANSWER = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": "skein-7m", "system_fingerprint": "f",
          "choices": [{"index": 0, "text": " a", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
          "usage": {"prompt_tokens": 32, "completion_tokens": 1, "total_tokens": 33}}
# What a stream of SMG's workers says: 64 tokens, each in an event.
EVENT = {**ANSWER, "choices": [{"index": 0, "text": " a", "logprobs": None, "finish_reason": None}], "usage": None}
STREAM = "".join(f"data: {json.dumps(EVENT)}\n\n" for _ in range(64)) + "data: [DONE]\n\n"


def nginx_configuration(folder: str, first: int, is_stream: bool) -> str:
    """An nginx that answers completions at once on `WORKERS` ports from `first` on."""
    models = json.dumps({"object": "list", "data": [{"id": "skein-7m", "object": "model"}]})
    with open(os.path.join(folder, "stream"), "w") as file:
        file.write(STREAM)
    # A file answers GET; the page of an error is asked for by GET.
    answer = f"error_page 405 =200 /stream; alias {folder}/stream" if is_stream else f"return 200 '{json.dumps(ANSWER)}'"
    servers = "".join(
        f"server {{ listen 127.0.0.1:{first + nth}; default_type application/json; client_max_body_size 8m;"
        f" location = /v1/completions {{ {answer}; }}"
        f" location = /stream {{ default_type text/event-stream; root {folder}; }}"
        f" location / {{ return 200 '{models}'; }} }}\n" for nth in range(WORKERS))
    paths = "".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return (f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;\n"
            f"events {{ worker_connections 4096; }}\n"
            f"http {{ access_log off; keepalive_requests 1000000000; {paths}\n{servers} }}\n")


@contextlib.contextmanager
def smg_cluster(smg: str, is_stream: bool):
    """Yields SMG's process and its URL."""
    first = router.free_ports(WORKERS + 2)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # nginx's worker may be another user
        path = os.path.join(folder, "nginx.conf")
        with open(path, "w") as file:
            file.write(nginx_configuration(folder, first, is_stream))
        urls = [f"http://127.0.0.1:{first + nth}" for nth in range(WORKERS)]
        port, metrics = first + WORKERS, first + WORKERS + 1
        command = [smg, "launch", "--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port),
                   "--prometheus-port", str(metrics), "--prometheus-host", "127.0.0.1", "--log-level", "error"]
        try:
            os.sched_setaffinity(0, {1})
            started.append(subprocess.Popen(["nginx", "-c", path, "-p", folder], **quiet))
            os.sched_setaffinity(0, {0})
            started.append(subprocess.Popen(command, **quiet))
            os.sched_setaffinity(0, {1})
            wait_for_answer(f"http://127.0.0.1:{port}")
            yield started[1], f"http://127.0.0.1:{port}"
        finally:
            for process in reversed(started):
                process.terminate()
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def wait_for_answer(url: str) -> None:
    body = json.dumps({"model": "skein-7m", "prompt": "a", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    for _ in range(300):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(request, timeout=5).read()
            time.sleep(2)  # all workers, not only the first
            return
        time.sleep(0.1)
    raise SystemExit("SMG does not answer")


class Measured:
    def __init__(self):
        self.rates, self.costs = [], []

    def round(self, process, url: str, row: str, seed: int) -> None:
        before = router.cpu_seconds(process.pid)
        rate, count = router.wrk(url, row, seed)
        self.rates.append(rate)
        self.costs.append((router.cpu_seconds(process.pid) - before) / count * 1e6)

    def shown(self) -> str:
        rates = f"{statistics.median(self.rates):.0f}/s ({min(self.rates):.0f} to {max(self.rates):.0f})"
        return f"{rates}, {statistics.median(self.costs):.1f} us of CPU a request"


def compare(row: str, builds: dict[str, str], smg: str | None, workers_by: str | None) -> None:
    with contextlib.ExitStack() as stack:
        contestants = {}
        for name, binary in builds.items():
            process, url, _ = stack.enter_context(router.cluster(binary, workers_by=workers_by))
            contestants[name] = (process, url, row)
        if smg:
            process, url = stack.enter_context(smg_cluster(smg, row == "streams"))
            contestants["smg"] = (process, url, {"ids": "short", "streams": "text streams"}.get(row, row))
        measured = {name: Measured() for name in contestants}
        for seed in range(1, ROUNDS + 1):
            for name, (process, url, of) in contestants.items():
                measured[name].round(process, url, of, seed)
        for name, got in measured.items():
            print(f"{row:8} {name:8} {got.shown()}", flush=True)
        cost = statistics.median(measured["new"].costs)
        for name, got in measured.items():
            if name != "new":
                rate = statistics.median(measured["new"].rates) / statistics.median(got.rates)
                print(f"{row:8} new / {name}: {rate:.2f} of the rate; {statistics.median(got.costs) / cost:.2f} by processor time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--before", help="an older build")
    parser.add_argument("--workers-by", help="the build whose workers serve both; otherwise each has its own")
    parser.add_argument("--smg")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.sched_setaffinity(0, {1})
    builds = {"before": args.before} if args.before else {}
    for row in args.rows:
        compare(row, {**builds, "new": args.binary}, args.smg, args.workers_by)


if __name__ == "__main__":
    main()
