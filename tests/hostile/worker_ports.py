#!/usr/bin/env python3
"""usage: worker_ports.py SKEIN

With an API key set, calls every method of the workers of `skein serve` as another user of the machine, with
and without a guessed secret. Each call must be refused, and no other user may be able to read the secret.
Needs a curl with HTTP/2.
"""

import re
import subprocess
import sys
import time

from server import Server, skip

METHODS = ["Info", "Generate", "Attach", "Exchange", "Release", "Abort", "Watch"]
KEY = "sk-hostile-1"
UNAUTHENTICATED = "16"
PORTS_WITHIN_S = 120


def ports_of(pid):
    """TCP ports that a process listens on."""
    sockets = subprocess.run(["ls", "-l", f"/proc/{pid}/fd"], capture_output=True, text=True).stdout
    inodes = set(re.findall(r"socket:\[(\d+)\]", sockets))
    with open(f"/proc/{pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def ports_of_all(server):
    """The workers of `serve` and their ports, once each listens: the server is ready with its first."""
    deadline = time.monotonic() + PORTS_WITHIN_S
    while True:
        ports = {pid: ports_of(pid) for pid in server.workers()}
        if len(ports) == 2 and all(ports.values()):
            return ports
        if time.monotonic() > deadline:
            sys.exit(f"after {PORTS_WITHIN_S} s, not all workers listen: {ports}")
        time.sleep(0.05)


def call(port, method, authorization):
    """The gRPC status of a call, or the output without one.

    The call has no message: a server that refuses a call resets the stream of a client that still sends, and
    curl then reports the reset instead of the status.
    """
    command = ["curl", "-s", "-m", "10", "--http2-prior-knowledge", "-D", "-", "-o", "/dev/null", "--data-binary", ""]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    command += ["-H", f"authorization: {authorization}"] if authorization else []
    url = f"http://127.0.0.1:{port}/skein.worker.v1.Worker/{method}"
    told = subprocess.run([*command, url], capture_output=True).stdout.decode()
    status = re.search(r"^grpc-status: (\d+)", told, re.MULTILINE)
    return status.group(1) if status else told.splitlines()[:1] or "no answer"


def main(skein):
    if "HTTP2" not in subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout:
        skip("no curl with HTTP/2 on this machine")
    tried, open_calls, shown = 0, [], []
    with Server(skein, "--workers", "2", "--api-key", KEY) as server:
        assert server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, key=KEY)[0] == 200
        of_workers = ports_of_all(server)
        workers, ports = list(of_workers), sum(of_workers.values(), [])
        for port in ports:
            for method in METHODS:
                for authorization in (None, f"Bearer {KEY}", f"Bearer {'0' * 64}", "Basic eDp5"):
                    status = call(port, method, authorization)
                    tried += 1
                    if status != UNAUTHENTICATED:
                        open_calls.append((port, method, authorization, status))
        for pid in workers:
            for file in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{file}") as text:
                    shown += re.findall(r"[0-9a-f]{64}", text.read())
        shown += re.findall(r"[0-9a-f]{64}", server.told())
    print(f"{len(workers)} workers, ports {ports}: {tried} calls without the secret, {len(open_calls)} not refused")
    print(f"secrets in command lines, environments and logs: {len(shown)}")
    for found in open_calls:
        print("  not refused:", *found)
    return int(bool(open_calls or shown))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
