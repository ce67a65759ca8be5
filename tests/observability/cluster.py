"""A small cluster under load, and a Prometheus that scrapes it every second. Standard library only."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

READY_LIMIT_S = 60
REQUEST_LIMIT_S = 60
STOP_LIMIT_S = 30
CLIENTS_PER_ROUTER = 4
OUTPUT_TOKENS = 150
PACKED = pathlib.Path(__file__).resolve().parents[2] / "models/skein-7m/packed.py"
PROMPT = "def main(arguments):\n    " * 8


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=REQUEST_LIMIT_S) as answer:
        return answer.read().decode()


def wait_until(what, check):
    end = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < end:
        try:
            if check():
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"not within {READY_LIMIT_S} s: {what}")


class Processes:
    """Child processes, with their output in files; all are stopped at the end."""

    def __init__(self, directory):
        self.directory = directory
        self.running = []

    def start(self, name, *command):
        log = open(self.directory / f"{name}.log", "wb")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def stop(self):
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def certificates(skein, directory):
    """Flags of a node's certificate, whose end is a metric."""
    for arguments in (["ca"], ["node", "node", "--host", "127.0.0.1"]):
        subprocess.run([os.path.abspath(skein), "certs", *arguments], cwd=directory.parent, check=True, capture_output=True)
    files = (("ca", "ca.crt"), ("cert", "node.crt"), ("key", "node.key"))
    return [f"--cluster-{flag}={directory / file}" for flag, file in files]


class Cluster:
    """`skein serve` with two workers, and a router with a standalone worker, whose engine can be scraped."""

    def __init__(self, skein, processes):
        serve, router, worker, self.worker = (f"127.0.0.1:{free_port()}" for _ in range(4))
        self.routers = [serve, router]
        self.node = certificates(skein, processes.directory / "certs")
        self.serve = processes.start("serve", skein, "serve", "--workers", "2", "--port", serve.split(":")[1], *self.node)
        processes.start("worker", skein, "worker", "--listen", worker, "--metrics-port", self.worker.split(":")[1],
                        "--enable-lora", *self.node)
        processes.start("router", skein, "router", "--workers", worker, "--port", router.split(":")[1], *self.node)
        for address in self.routers:
            wait_until(f"{address} is ready", lambda: get(f"http://{address}/readyz") is not None)
        # Both workers of `serve`, so that a request can move to another worker.
        wait_until("two workers", lambda: "skein_workers_ready" in get(f"http://{serve}/metrics") and self.ready() == 2)

    def ready(self):
        lines = get(f"http://{self.routers[0]}/metrics").splitlines()
        return sum(line.startswith("skein_worker_ready{") and line.endswith(" 1") for line in lines)

    def kill_a_worker(self):
        """`kill -9` of a worker process of `skein serve`."""
        with open(f"/proc/{self.serve.pid}/task/{self.serve.pid}/children") as children:
            found = [int(pid) for pid in children.read().split()]
        if not found:  # a thread other than the first may have started them
            found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) == self.serve.pid]
        os.kill(found[0], signal.SIGKILL)


def several_models(skein, processes, node):
    """Address of `skein serve` with two models, of which one has answered."""
    models = processes.directory / "models"
    for name in ("first", "second"):
        subprocess.run([sys.executable, str(PACKED), "copy", str(models / name)], check=True)
    address = f"127.0.0.1:{free_port()}"
    processes.start("several", skein, "serve", str(models), "--port", address.split(":")[1], *node)
    wait_until(f"{address} is ready", lambda: get(f"http://{address}/readyz") is not None)
    body = json.dumps({"model": "first", "prompt": PROMPT, "max_tokens": 4}).encode()
    request = urllib.request.Request(f"http://{address}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    return address


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


class Load:
    """Clients that stream consecutive answers until `stop`."""

    def __init__(self, addresses):
        self.stopping = threading.Event()
        self.finished, self.failures = 0, []
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self.run, args=(address,)) for address in addresses * CLIENTS_PER_ROUTER
        ]
        for thread in self.threads:
            thread.start()

    def run(self, address):
        body = {"prompt": PROMPT, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True}
        while not self.stopping.is_set():
            request = urllib.request.Request(
                f"http://{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S) as answer:
                    text = answer.read().decode()
                is_whole = '"finish_reason":"length"' in text and text.endswith("data: [DONE]\n\n")
                problem = None if is_whole else text[-300:]
            except (OSError, http.client.HTTPException) as error:  # the latter: the answer was cut off
                problem = repr(error)
            with self.lock:
                self.finished += 1
                self.failures += [problem] if problem else []

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


class Prometheus:
    """A real Prometheus with this cluster's targets and the given rules."""

    def __init__(self, processes, directory, cluster, rules):
        self.address = f"127.0.0.1:{free_port()}"
        jobs = {"skein-router": cluster.routers, "skein-worker": [cluster.worker]}
        # JSON is a subset of YAML.
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": targets}]} for job, targets in jobs.items()
            ],
        }
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(config))
        processes.start(
            "prometheus", "prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self.address}", "--log.level=warn",
        )
        wait_until("Prometheus is ready", lambda: get(f"http://{self.address}/-/ready"))

    def api(self, path, **parameters):
        answer = json.loads(get(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, query):
        """The values of a query's series that are numbers."""
        try:
            result = self.api("query", query=query)["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        return [float(series["value"][1]) for series in result if series["value"][1] != "NaN"]
