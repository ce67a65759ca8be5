"""`skein serve` as a context manager: starts it on a free port, waits until it is ready, ends it by
SIGINT."""

import contextlib
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

READY_LIMIT_S, END_LIMIT_S = 120, 60
TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serve(binary: str, model: str | None, flags: list[str], cpu: int | None = None):
    """Yields the process and its URL. `cpu` pins the router, which is this process, to one processor."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [binary, "serve", *([model] if model else []), "--port", str(port), "--log-level", "error", *flags]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(server, url)
        if cpu is not None:
            for thread in os.listdir(f"/proc/{server.pid}/task"):
                os.sched_setaffinity(int(thread), {cpu})
        yield server, url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=END_LIMIT_S)


def wait_until_ready(server: subprocess.Popen, url: str) -> None:
    unverified = ssl.create_default_context()  # whoever measures has made the certificates
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    give_up = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < give_up and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=1, context=unverified):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    server.kill()
    sys.exit(f"{' '.join(server.args)} was not ready after {READY_LIMIT_S} s, or ended")


def family(pid: int) -> list[int]:
    """A process and its children. The kernel lists a child at the thread that has started it."""
    lists = [path.read_text().split() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *map(int, sum(lists, []))]


def cpu_seconds(pid: int) -> float:
    """Processor time of one process, without its children."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
