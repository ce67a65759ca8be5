"""A `skein serve` to attack: started on a free port, watched from /proc, ended by its own pid."""

import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time

START_TIMEOUT_S = 120
# The shipped model.
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "skein-7m"


class Server:
    def __init__(self, skein: str, *flags: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [skein, "serve", "--port", str(self.port), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        start = time.monotonic()
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() - start > START_TIMEOUT_S:
                sys.exit(f"{' '.join(command)} did not start: {self.process.poll()}")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ready(self) -> bool:
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def call(self, method: str, path: str, body=None, timeout=120.0, key=None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def open(self, path: str, body: dict) -> socket.socket:
        """Sends a request and reads nothing, through a small receive buffer."""
        stream = socket.socket()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.connect(("127.0.0.1", self.port))
        text = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        stream.sendall(head.encode() + text)
        return stream

    def memory_mib(self, field: str = "VmRSS") -> float:
        """Of the process that clients talk to; `VmHWM` is its peak."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field + ":")) / 1024
