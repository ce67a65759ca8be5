"""Measures whether a short request waits for a long prompt, and whether equal prompts get first tokens in
turn.

Usage: python3 benches/load/short_behind_long.py path/to/skein MODEL_DIR [--longs N] [serve's flags...]
Starts one worker. Sends prompts of 64 tokens alone; then while prompts of 4,000 tokens prefill, at random
times; then 32 prompts of 128 tokens at once. All tokens are random, so nothing is cached. Prints TTFT beside
the bounds that the scheduler promises: for short prompts twice the time alone plus one step, for the equal
ones a median of half the last one's time. Exits 1 if a bound is exceeded.
"""

import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

SHORT, LONG = 64, 4000
EQUAL, EQUAL_TOKENS, EQUAL_ANSWER = 32, 128, 64
# Planned length of a step, in seconds, while only prompts run: a new request waits for the step to finish.
STEP = 0.5
ALONE_RUNS = 7
READY_SECONDS = 60
REQUEST_SECONDS = 180
# First tokens that arrive within this time of each other come from one step.
SAME_STEP = 0.005


class Server:
    def __init__(self, binary: str, model: str, flags: list[str]) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [binary, "serve", model, "--workers", "1", "--max-model-len", "8192", "--port", str(port)]
        self.process = subprocess.Popen(
            [*command, "--log-level", "warn", *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/readyz", timeout=1)
                return
            except OSError:
                assert self.process.poll() is None, "skein ended before it was ready"
                time.sleep(0.05)
        raise TimeoutError(f"not ready after {READY_SECONDS} s")

    def first_token(self, prompt_tokens: int, answer_tokens: int) -> tuple[float, float]:
        """Times of the request and of its first token; reads the answer to its end."""
        prompt = [random.randrange(10, 4000) for _ in range(prompt_tokens)]
        body = {"prompt": prompt, "max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        asked, first = time.monotonic(), None
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
            for line in answer:
                if first is None and line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                    first = time.monotonic()
        assert first is not None, "no token came"
        return asked, first

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)


def times_alone(server: Server) -> list[float]:
    times = []
    for _ in range(ALONE_RUNS):
        asked, first = server.first_token(SHORT, 1)
        times.append(first - asked)
    return times


def times_behind(server: Server) -> tuple[list[float], float]:
    """TTFT of each short request whose first token came before the long request's, and of the long one."""
    long = []
    thread = threading.Thread(target=lambda: long.append(server.first_token(LONG, 1)))
    thread.start()
    time.sleep(random.uniform(0.3, 0.8))
    shorts = []
    while thread.is_alive():
        shorts.append(server.first_token(SHORT, 1))
        time.sleep(random.uniform(0.0, 0.5))
    thread.join()
    long_asked, long_first = long[0]
    return [first - asked for asked, first in shorts if first < long_first], long_first - long_asked


def equal_times(server: Server) -> list[float]:
    marks = []
    ask = lambda: marks.append(server.first_token(EQUAL_TOKENS, EQUAL_ANSWER))
    threads = [threading.Thread(target=ask) for _ in range(EQUAL)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(first - start for _, first in marks)


def verdict(text: str, got: float, bound: float) -> bool:
    print(f"  {text}: {got * 1000:.0f} ms, bound {bound * 1000:.0f} ms: {'holds' if got <= bound else 'BROKEN'}")
    return got <= bound


def main(binary: str, model: str, longs: int, flags: list[str]) -> bool:
    server = Server(binary, model, flags)
    try:
        server.wait_until_ready()
        for tokens in (400, 20, 200, 100):  # the scheduler measures how long steps take
            server.first_token(tokens, 4)
        alone = statistics.median(times_alone(server))
        print(f"{SHORT} tokens alone: median of {ALONE_RUNS} {alone * 1000:.0f} ms")
        behind = []
        for _ in range(longs):
            times, long = times_behind(server)
            behind += times
            print(f"{SHORT} tokens while {LONG} prefill ({long:.1f} s): {[round(t * 1000) for t in times]} ms")
        assert behind, "the long prompt was done before a short one; take a larger model"
        bound = 2 * alone + STEP
        holds = verdict("median", statistics.median(behind), bound)
        holds &= verdict("slowest", max(behind), bound)
        equal = equal_times(server)
    finally:
        server.stop()
    groups = 1 + sum(later - earlier > SAME_STEP for earlier, later in zip(equal, equal[1:]))
    print(f"{EQUAL} prompts of {EQUAL_TOKENS} tokens at once: first tokens in {groups} steps, {equal[0]:.2f} to {equal[-1]:.2f} s")
    return verdict("median", statistics.median(equal), equal[-1] / 2) and holds


if __name__ == "__main__":
    arguments = sys.argv[3:]
    count = 2
    if "--longs" in arguments:
        at = arguments.index("--longs")
        count = int(arguments[at + 1])
        del arguments[at : at + 2]
    sys.exit(0 if main(sys.argv[1], sys.argv[2], count, arguments) else 1)
