"""A running cluster, ended by its process id."""

import contextlib
import os
import pathlib
import socket
import subprocess
import time
import urllib.request


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_ready(port: int, process: subprocess.Popen) -> None:
    """Waits until the process serves on `port`; fails if it ends or takes over a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            assert process.poll() is None, "skein ended before it was ready"
            time.sleep(0.05)
    raise AssertionError(f"port {port} was not ready within 60 s")


class Cluster:
    def __init__(self, *arguments: str, port: int | None = None, log: pathlib.Path | None = None):
        self.log = log
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        with open(log, "w") if log else contextlib.nullcontext() as errors:
            self.process = subprocess.Popen(
                [os.environ["TEST_BINARY"], "serve", "--port", str(self.port), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        try:
            wait_ready(self.port, self.process)
        except AssertionError:
            self.end()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
