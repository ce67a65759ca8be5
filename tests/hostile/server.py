"""A `skein serve` to attack: started on a free port, watched through /proc, ended by its pid."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

START_TIMEOUT_S = 180  # of a development build on a busy machine
# The shipped model, used by all scripts.
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "skein-7m"
subprocess.run([sys.executable, MODEL / "packed.py", "unpack"], check=True)
# Exit code of a script that this machine cannot run.
SKIPPED = 3


class Server:
    """`env` replaces the environment. `prefix` is a command that runs the server's command line."""

    def __init__(self, skein: str, *flags: str, env=None, cwd=None, prefix=(), wait=True):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [*prefix, skein, "serve", "--port", str(self.port), *flags]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.log, env=env, cwd=cwd)
        self.started = time.monotonic()
        while wait and not self.ready():
            if self.process.poll() is not None or time.monotonic() - self.started > START_TIMEOUT_S:
                sys.exit(f"{' '.join(map(str, command))} did not start: {self.process.poll()}\n{self.told()}")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def told(self) -> str:
        """Standard error of the server so far."""
        self.log.seek(0)
        return self.log.read()

    def ready(self) -> bool:
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def call(self, method: str, path: str, body=None, timeout=120.0, key=None, headers=None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"content-type": "application/json"} | (headers or {})
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def open(self, path: str, body: dict, key=None) -> socket.socket:
        """Sends a request and reads nothing, through a small receive buffer."""
        stream = socket.socket()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.connect(("127.0.0.1", self.port))
        text = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
        head += f"authorization: Bearer {key}\r\n" if key else ""
        stream.sendall(head.encode() + b"\r\n" + text)
        return stream

    def children(self) -> list[int]:
        """Child processes, from /proc: workers, and processes that render chats."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) == self.process.pid:
                        found.append(int(entry))
            except OSError:
                continue  # it has just ended
        return found

    def workers(self) -> list[int]:
        return [pid for pid in self.children() if words(pid)[1:2] == ["worker"]]

    def memory_mib(self, field: str = "VmRSS", pid=None) -> float:
        """A memory figure of the router's process, or of `pid`; `VmHWM` is its peak."""
        try:
            with open(f"/proc/{pid or self.process.pid}/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith(field + ":")) / 1024
        except (OSError, StopIteration):
            return 0.0  # it has ended


def words(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline") as line:
            return line.read().split("\0")
    except OSError:
        return []


def skip(why: str):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)
