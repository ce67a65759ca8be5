"""Measures the time that a cached prefix saves, and checks that only one worker does the work.

Usage: python3 benches/load/prefix.py path/to/skein MODEL_DIR
Starts two workers, sends a prompt of 800 tokens cold, three times again, and once with a different end.
Prints TTFT, cached tokens as `usage` reports them, and the CPU seconds of each worker.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

PROMPT_TOKENS, SHARED_TOKENS = 800, 700


def process_fields(pid: int | str) -> list[str]:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()


def children(parent: int) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(process_fields(entry)[1]) == parent:
                found.append(int(entry))
        except OSError:  # it has ended meanwhile
            continue
    return sorted(found)


def cpu_seconds(pid: int) -> float:
    fields = process_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(url: str, prompt: list[int]) -> tuple[float, int]:
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    sent, first, cached = time.monotonic(), None, 0
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if first is None and chunk["choices"]:
                first = time.monotonic() - sent
            if chunk.get("usage"):
                cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first is not None, "no token came"
    return first, cached


def main(binary: str, model: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [binary, "serve", model, "--workers", "2", "--port", str(port), "--log-level", "warn"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )
    try:
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=1)
                break
            except OSError:
                assert server.poll() is None, "skein ended before it was ready"
                time.sleep(0.05)
        time.sleep(1)  # the second worker
        workers = children(server.pid)
        prompt = [(i * 7919) % 4000 + 10 for i in range(PROMPT_TOKENS)]
        sibling = prompt[:SHARED_TOKENS] + [(i * 31) % 4000 + 10 for i in range(PROMPT_TOKENS - SHARED_TOKENS)]
        for name, tokens in [("cold", prompt), *[("repeated", prompt)] * 3, ("shared prefix", sibling)]:
            before = [cpu_seconds(worker) for worker in workers]
            first, cached = ask(url, tokens)
            spent = [f"{cpu_seconds(worker) - was:.2f}" for worker, was in zip(workers, before)]
            print(f"{name:14} TTFT {first * 1000:7.0f} ms   cached {cached:4} of {len(tokens)}   CPU seconds {spent}")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)


main(sys.argv[1], sys.argv[2])
