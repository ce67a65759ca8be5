#!/usr/bin/env python3
"""usage: lying_servers.py SKEIN [MIB]

A server behind `skein router --worker-urls` frames its answers wrongly and sends MIB (default 200) mebibytes
in each, to clients that read and to clients that do not. The router's peak memory must stay within 64 MiB of
what it took before, and it must answer the next client.
"""

import pathlib
import socket
import subprocess
import sys
import threading
import time

from server import Server

MORE_MIB = 64
PART = b"x" * 65536
CHUNK = b"10000\r\n" + PART + b"\r\n"
EVENT = b"data: " + b"x" * 65528 + b"\n\n"
# Head lines, what is sent again and again.
ATTACKS = {
    "two framings": (b"content-length: 2\r\ntransfer-encoding: chunked\r\n", CHUNK),
    "chunks": (b"transfer-encoding: chunked\r\n", CHUNK),
    "no framing": (b"", PART),
    "a length": (b"content-length: 1099511627776\r\n", PART),
    "one event": (b"content-type: text/event-stream\r\n", PART),
    "many events": (b"content-type: text/event-stream\r\n", EVENT),
    "an error": (b"transfer-encoding: chunked\r\n", CHUNK),
}
READ_FOR_S = 0.3


def attend(client, most):
    """Answers health checks well, and a request by the attack that its prompt names."""
    with client, client.makefile("rwb") as stream:
        while line := stream.readline():
            length = 0
            while (head := stream.readline()) not in (b"\r\n", b""):
                if head.lower().startswith(b"content-length:"):
                    length = int(head.split(b":")[1])
            body = stream.read(length)
            name = next((name for name in ATTACKS if name.encode() in body), None)
            if name is None:
                stream.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                stream.flush()
                continue
            head, part = ATTACKS[name]
            status = b"500 X" if name == "an error" else b"200 OK"
            stream.write(b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n")
            for _ in range(most // len(part)):
                stream.write(part)
            return


def serve(most):
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            client, _ = listener.accept()
            threading.Thread(target=lambda: quietly(attend, client, most), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def quietly(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        pass  # the router has left


class Router(Server):
    """`skein router` before the lying server, with the harness's calls and figures."""

    def __init__(self, skein, port):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [skein, "router", "--worker-urls", f"http://127.0.0.1:{port}", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{' '.join(command)} did not start")
            time.sleep(0.05)


def read(stream):
    stream.settimeout(READ_FOR_S)
    read = 0
    end = time.monotonic() + READ_FOR_S
    while time.monotonic() < end and (part := stream.recv(1 << 20)):
        read += len(part)
    return read


def attack(router, name):
    body = {"prompt": name, "stream": "event" in name}
    unread = [router.open("/v1/completions", body) for _ in range(4)]
    quietly(read, router.open("/v1/completions", body))
    for stream in unread:
        stream.close()


def main(skein, mib="200"):
    skein = str(pathlib.Path(skein).resolve())
    with Router(skein, serve(int(mib) << 20)) as router:
        before = router.memory_mib("VmHWM")
        for name in ATTACKS:
            attack(router, name)
            more = router.memory_mib("VmHWM") - before
            print(f"{name}: the router's peak is {more:.0f} MiB above its start", flush=True)
            if more > MORE_MIB or not router.ready():
                print(f"more than {MORE_MIB} MiB, or no answer to the next client")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
