"""`skein serve` for the scripts that check a GPU."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`skein serve` until the end of a `with` block."""

    def __init__(self, binary, *flags):
        self.port = free_port()
        self.command = [binary, "serve", "--port", str(self.port), *map(str, flags)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                sys.exit(f"{' '.join(self.command)} ended with {self.process.returncode}")
            try:
                urllib.request.urlopen(self.url("/health"), timeout=5).close()
                return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        sys.exit(f"{' '.join(self.command)} is not ready after 240 s")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def post(self, body):
        request = urllib.request.Request(self.url("/v1/completions"), json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=300)

    def text(self, prompt, **fields):
        with self.post({"prompt": prompt, "max_tokens": 64, "temperature": 0, **fields}) as answer:
            return json.load(answer)["choices"][0]["text"]

    def stream(self, prompt, tokens, **fields):
        """(text, gaps between chunks in seconds, their times)"""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True, **fields}
        text, times = "", []
        with self.post(body) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    text += "".join(choice["text"] for choice in event["choices"])
                    times.append(time.monotonic())
        return text, [b - a for a, b in zip(times, times[1:])], times
