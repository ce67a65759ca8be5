"""Drives tests/envoy/run: placement, failures and refusals through a real Envoy. Standard library only."""

import http.client
import json
import pathlib
import re
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "observability"))
from cluster import Processes, free_port, get, wait_until  # noqa: E402

import envoy  # noqa: E402

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
CONVERSATIONS = 12
REQUEST_LIMIT_S = 60
# For each mode: how Envoy sends the request's body to the picker, and the answer's body.
MODES = {
    "streamed": ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    "buffered": ("BUFFERED", "NONE"),
}


class Scene:
    """Workers on separate hosts, a router beside each, a picker, and Envoy."""

    def __init__(self, skein, binary, processes):
        self.processes = processes
        work, self.serve, self.picker_port = free_port(), free_port(), free_port()
        self.ports = {mode: free_port() for mode in MODES}
        self.names = [f"{host}:{work}" for host in HOSTS]
        self.pool = [f"{host}:{self.serve}" for host in HOSTS]
        self.workers = [
            processes.start(f"worker-{at}", skein, "worker", "--listen", name, "--threads", "1")
            for at, name in enumerate(self.names)
        ]
        members = [flag for name in self.names for flag in ("--workers", name)]
        for at, host in enumerate(HOSTS):
            processes.start(f"router-{at}", skein, "router", "--host", host, "--port", str(self.serve),
                            "--follow-picks", *members)  # fmt: skip
        processes.start("picker", skein, "router", "--port", str(self.picker_port),
                        "--endpoint-port", str(self.serve), "--log-format", "json", *members)  # fmt: skip
        routers = [*self.pool, f"127.0.0.1:{self.picker_port}"]
        for router in routers:
            wait_until(f"three workers at {router}", lambda: self.ready(router) == len(HOSTS))
        path = processes.directory / "envoy.json"
        listeners = {mode: (self.ports[mode], *MODES[mode]) for mode in MODES}
        path.write_text(envoy.config(listeners, f"127.0.0.1:{self.picker_port}", self.pool))
        processes.start("envoy", binary, "-c", str(path), "--use-dynamic-base-id", "--log-level", "warning",
                        "--concurrency", "1")  # fmt: skip
        for mode in MODES:
            wait_until(f"Envoy listens ({mode})", lambda: self.ask("GET", "/v1/models", mode=mode)[0] == 200)

    def ready(self, router):
        lines = get(f"http://{router}/metrics").splitlines()
        return sum(line.startswith("skein_worker_ready{") and line.endswith(" 1") for line in lines)

    def ask(self, method, path, body=None, mode="streamed", port=None):
        """Sends a request through Envoy or directly; returns status, answering endpoint and body."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.ports[mode], timeout=REQUEST_LIMIT_S)
        try:
            text = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, path, text, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.getheader("x-upstream"), answer.read().decode()
        finally:
            connection.close()

    def picks(self):
        text = get(f"http://127.0.0.1:{self.picker_port}/metrics")
        return int(re.search(r'skein_picks_total\{.*outcome="picked".*\} (\d+)', text).group(1))

    def workers_of_picker(self):
        """The workers that the picker chose for requests sent to it directly, as far as its log tells yet."""
        lines = (self.processes.directory / "picker.log").read_text().splitlines()
        return [found.group(1) for found in map(re.compile(r'"worker":"([\d.:]+)"').search, lines) if found]

    def worker_of_picker(self, nth):
        """The same for the request of this number. A log is written behind its requests."""
        for _ in range(1000):
            workers = self.workers_of_picker()
            if len(workers) > nth:
                return workers[nth]
            time.sleep(0.01)
        raise AssertionError(f"the picker's log has {len(workers)} requests after 10 s")


def conversation(number, stream=False, tokens=8):
    prompt = f"Conversation number {number} of many. " * 90
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}


def tokens_of(text):
    """The output of a stream, which must be complete."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events and events[-1] == "[DONE]", text[-300:]
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(choice["text"] for choice in choices)


def placement(scene, mode):
    """A conversation stays with its prefix, and the picker makes the same choice for direct requests."""
    before, homes = scene.picks(), {}

    def begin(number):
        homes[number] = scene.ask("POST", "/v1/completions", conversation(number), mode)

    # All at once: one after another, they would all go to the fastest worker.
    threads = [threading.Thread(target=begin, args=(number,)) for number in range(CONVERSATIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (status, home, body) in homes.items():
        assert status == 200 and home in scene.pool, (status, home, body)
        homes[number] = home
    for number, home in homes.items():
        status, again, text = scene.ask("POST", "/v1/completions", conversation(number, stream=True), mode)
        assert status == 200 and again == home, f"conversation {number} went to {again}, its prefix is at {home}"
        asked = len(scene.workers_of_picker())
        assert scene.ask("POST", "/v1/completions", conversation(number), port=scene.picker_port)[0] == 200
        own = scene.worker_of_picker(asked)
        assert own.split(":")[0] == home.split(":")[0], f"the router itself chose {own}, the pick was {home}"
        tokens_of(text)
    assert scene.picks() - before == 2 * CONVERSATIONS, "every request through Envoy was picked for"
    assert len(set(homes.values())) > 1, f"load spreads: {homes}"
    return f"{2 * CONVERSATIONS} requests on {len(set(homes.values()))} endpoints, every second turn where its prefix is, as the router itself chose"


def refusals(scene, mode):
    def refused(body, status, code):
        got, upstream, text = scene.ask("POST", "/v1/completions", body, mode)
        error = json.loads(text)["error"] if text.startswith("{") else {"code": text[:200]}
        assert (got, upstream) == (status, None) and error["code"] == code, (got, upstream, text)

    refused({"prompt": "a", "temperature": 9}, 400, None)
    refused("no JSON", 400, "invalid_json")
    refused({"prompt": "a", "model": "other"}, 404, "model_not_found")
    refused({"prompt": "a" * (9 << 20)}, 413, "request_too_large")
    large = {"prompt": "a", "max_tokens": 2, "not-known": "x" * (1 << 20)}
    assert scene.ask("POST", "/v1/completions", large, mode)[0] == 200, "a body of 1 MiB passes"
    return "400, 404 and 413 as over HTTP; a body of 1 MiB passes"


def a_crash(scene):
    """A worker dies under streams: none fails, none repeats or loses a token."""
    expected = tokens_of(scene.ask("POST", "/v1/completions", conversation(0, stream=True, tokens=200))[2])
    answers = [None] * 8

    def client(at):
        answers[at] = scene.ask("POST", "/v1/completions", conversation(0, stream=True, tokens=200))

    threads = [threading.Thread(target=client, args=(at,)) for at in range(len(answers))]
    for thread in threads:
        thread.start()
    wait_until("streams run", lambda: running(scene) >= len(answers) // 2)
    home = scene.ask("POST", "/v1/completions", conversation(0))[1]
    victim = scene.pool.index(home)
    scene.workers[victim].kill()
    for thread in threads:
        thread.join()
    for status, _, text in answers:
        assert status == 200 and tokens_of(text) == expected, (status, text[-300:])
    wait_until("the picker has noticed", lambda: scene.ready(f"127.0.0.1:{scene.picker_port}") == len(HOSTS) - 1)
    moved = sum(metric(router, "skein_requests_moved_total") for router in scene.pool)
    assert moved > 0, "no stream was on the worker that died"
    for number in range(CONVERSATIONS):
        status, upstream, text = scene.ask("POST", "/v1/completions", conversation(number))
        assert status == 200 and upstream != home, (status, upstream, text)
    return f"{len(answers)} streams with the same text, {moved:.0f} of them moved; nothing more goes to the dead worker's host"


def running(scene):
    return sum(metric(router, "skein_requests_in_flight") for router in scene.pool)


def metric(router, name):
    found = re.search(rf"^{name}(?:\{{[^}}]*\}})? ([\d.e+]+)$", get(f"http://{router}/metrics"), re.MULTILINE)
    return float(found.group(1))


def nobody_left(scene):
    for worker in scene.workers:
        worker.kill()
    picker = f"127.0.0.1:{scene.picker_port}"
    wait_until("no worker is ready", lambda: scene.ready(picker) == 0)
    status, upstream, text = scene.ask("POST", "/v1/completions", conversation(1))
    assert (status, upstream) == (503, None) and json.loads(text)["error"]["code"] == "no_ready_worker", (status, text)
    return "503 from the picker when no worker is left"


def main(skein, binary):
    with tempfile.TemporaryDirectory() as directory:
        processes = Processes(pathlib.Path(directory))
        try:
            scene = Scene(skein, binary, processes)
            for mode in MODES:
                print(f"{mode}: {placement(scene, mode)}", flush=True)
                print(f"{mode}: {refusals(scene, mode)}", flush=True)
            print(f"a crash: {a_crash(scene)}", flush=True)
            print(nobody_left(scene), flush=True)
        except BaseException:
            for log in sorted(pathlib.Path(directory).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
            raise
        finally:
            processes.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
