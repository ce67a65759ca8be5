"""A cluster of every role on loopback: a gateway, a router, a worker, and a worker of two nodes."""

import http.client
import json
import pathlib
import signal
import socket
import ssl
import subprocess
import time

KEY = "the-key-of-the-clients"
READY_SECONDS = 60


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """Started by `with`; ends its own processes. `locks` is "tls", "secret" or "none"."""

    ROLES = ["gateway", "router", "alone", "leader", "follower"]

    def __init__(self, skein, folder, locks):
        self.skein, self.folder, self.locks = skein, pathlib.Path(folder), locks
        names = ["gateway", "router", "alone", "leader", "group", *(f"{role} metrics" for role in self.ROLES[:4])]
        self.ports = dict(zip(names, free_ports(len(names))))
        self.processes = {}

    def certs(self, *arguments):
        subprocess.run([self.skein, "certs", *arguments], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def make_certificates(self):
        self.certs("ca")
        for role in self.ROLES:
            self.certs("node", role, "--host", "127.0.0.1", "--host", "localhost")
        self.certs("ca", "--out", "others")
        self.certs("node", "stranger", "--host", "127.0.0.1", "--ca", "others")

    def flags(self, role):
        certs = self.folder / "certs"
        if self.locks == "secret":
            return ["--cluster-secret-file", str(self.folder / "secret")]
        if self.locks == "none":
            return []
        flags = ["--cluster-ca", certs / "ca.crt", "--cluster-cert", certs / f"{role}.crt", "--cluster-key", certs / f"{role}.key"]
        if role in ("gateway", "router"):
            flags += ["--tls-cert", certs / f"{role}.crt", "--tls-key", certs / f"{role}.key"]
        return list(map(str, flags))

    def start(self, role, *arguments):
        log = open(self.folder / f"{role}.log", "wb")
        own = [*self.flags(role)]
        if f"{role} metrics" in self.ports:
            own += ["--metrics-port", str(self.ports[f"{role} metrics"])]
        self.processes[role] = subprocess.Popen([self.skein, *arguments, *own], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def __enter__(self):
        at = lambda name: f"127.0.0.1:{self.ports[name]}"
        group = ["--device", "cpu", "--threads", "1", "-tp", "2", "--nnodes", "2", "--leader", at("group")]
        if self.locks == "tls":
            self.make_certificates()
        if self.locks == "secret":
            self.certs("secret", "--out", "secret")
        self.start("alone", "worker", "--listen", at("alone"), "--device", "cpu", "--threads", "1")
        self.start("leader", "worker", "--listen", at("leader"), *group)
        self.start("follower", "worker", *group, "--node-rank", "1")
        self.start("router", "router", "--port", str(self.ports["router"]), "--workers", f"{at('alone')},{at('leader')}", "--api-key", KEY)
        self.start("gateway", "gateway", "--port", str(self.ports["gateway"]), "--routers", at("router"), "--api-key", KEY,
                   *([] if self.locks == "tls" else ["--router-api-key", KEY]))  # fmt: skip
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self):
        waits = ["alone metrics", "leader metrics", "router metrics", "gateway metrics"]
        end = time.monotonic() + READY_SECONDS
        while waits:
            ended = [role for role, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > end:
                role = (ended or [waits[0].split()[0]])[0]
                log = (self.folder / f"{role}.log").read_text("utf-8", "replace")[-2000:]
                raise SystemExit(f"FAILED: {self.locks}: {role} {'ended' if ended else 'is not ready'}:\n{log}")
            try:
                if plain(self.ports[waits[0]], "GET", "/readyz")[0] == 200:
                    waits.pop(0)
                    continue
            except OSError:
                pass
            time.sleep(0.1)

    def __exit__(self, *_):
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pids(self):
        return [process.pid for process in self.processes.values()]

    def trusting(self):
        """What a client of the gateway trusts; None without TLS."""
        if self.locks != "tls":
            return None
        return ssl.create_default_context(cafile=self.folder / "certs/ca.crt")

    def ask(self, path, body, key=KEY, timeout=60):
        context = self.trusting()
        kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
        more = {"context": context} if context else {}
        connection = kind("127.0.0.1", self.ports["gateway"], timeout=timeout, **more)
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        return connection.getresponse()


def plain(port, method, path, headers=None):
    """Status and body of a request without TLS."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, None if method == "GET" else "{}", headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
