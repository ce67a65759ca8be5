"""Tool calls through a gateway whose routers are killed, alone and together with a worker: the client gets
the same calls without reconnecting."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

import pytest
from running import free_port, wait_ready

MODEL = str(pathlib.Path(__file__).parents[2] / "models" / "skein-7m")
subprocess.run([sys.executable, pathlib.Path(MODEL, "packed.py"), "unpack"], check=True)
TEMPLATE = str(pathlib.Path(__file__).with_name("hermes.jinja"))
STREAMS = 12
# Many arguments make long calls, so that a kill is in the middle of one.
STEP = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}
SCHEMA = {"type": "object", "properties": {"steps": {"type": "array", "items": STEP, "minItems": 4, "maxItems": 10}},
          "required": ["steps"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "travel", "parameters": SCHEMA}}


class Process:
    def __init__(self, *arguments: str):
        self.arguments = [os.environ["TEST_BINARY"], *arguments]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def cluster():
    """Starts two workers, two routers and a gateway; yields the gateway's port, the routers and workers."""
    ports = [free_port() for _ in range(5)]
    workers = ",".join(f"127.0.0.1:{port}" for port in ports[:2])
    of_workers = [Process("worker", MODEL, "--listen", f"127.0.0.1:{port}", "--threads", "1") for port in ports[:2]]
    routers = [Process("router", MODEL, "--port", str(port), "--workers", workers) for port in ports[2:4]]
    started = of_workers + routers
    for router, port in zip(routers, ports[2:4]):
        wait_ready(port, router.process)
    behind = ",".join(f"127.0.0.1:{port}" for port in ports[2:4])
    started.append(Process("gateway", MODEL, "--port", str(ports[4]), "--routers", behind, "--chat-template", TEMPLATE))
    wait_ready(ports[4], started[-1].process)
    yield ports[4], list(zip(routers, ports[2:4])), of_workers
    for process in started:
        process.kill()


def chunks(port: int, seed: int, heard: list[dict]) -> list[dict]:
    """Returns the choice of each chunk, and appends it to `heard` as it arrives."""
    body = {"messages": [{"role": "user", "content": "Travel!"}], "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False,
            "max_tokens": 800, "seed": seed, "temperature": 1, "stream": True, "chat_template_kwargs": {"enable_thinking": False}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    for line in answer:
        if line.startswith(b"data: {"):
            heard += json.loads(line[6:])["choices"]
    return heard


def together(heard: list[dict]) -> tuple:
    """The call that the chunks concatenate to, and how it ended. The split into chunks depends on timing."""
    calls = [call for choice in heard for call in choice["delta"].get("tool_calls") or []]
    assert [call["index"] for call in calls] == [0] * len(calls)
    assert sum("id" in call for call in calls) == 1, "a call begins once"
    assert not any(choice["delta"].get("content") for choice in heard)
    return calls[0]["function"]["name"], "".join(call["function"]["arguments"] for call in calls), heard[-1]["finish_reason"]


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def wait_for_workers(routers: list[tuple[Process, int]]) -> None:
    deadline = time.monotonic() + 60
    while any(metric(port, "skein_workers_ready") < 2 for _, port in routers):
        assert time.monotonic() < deadline, "a router did not see both workers within 60 s"
        time.sleep(0.05)


def test_a_router_killed_in_the_middle_of_calls_changes_no_call(cluster):
    port, routers, workers = cluster
    wait_for_workers(routers)
    undisturbed = [together(chunks(port, seed, [])) for seed in range(STREAMS)]
    for name, arguments, finish in undisturbed:
        assert name == "travel" and len(arguments) > 300 and finish in ("tool_calls", "length")
        assert finish == "length" or len(json.loads(arguments)["steps"]) >= 4
    rounds = [(router, []) for router in routers] + [(router, [worker]) for router, worker in zip(routers, workers)]
    hit = 0
    for (router, router_port), killed_too in rounds:
        running = [[] for _ in range(STREAMS)]
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as threads:
            streams = [threads.submit(chunks, port, seed, running[seed]) for seed in range(STREAMS)]
            while min(map(len, running)) < 12:
                time.sleep(0.002)
            hit += sum(heard[-1]["finish_reason"] is None for heard in running)
            for process in [router, *killed_too]:
                process.process.kill()
            for seed, stream in enumerate(streams):
                assert together(stream.result()) == undisturbed[seed], f"seed {seed}, {len(killed_too)} workers killed"
        for process in [router, *killed_too]:
            process.process.wait()
            process.start()
        wait_ready(router_port, router.process)
        wait_for_workers(routers)
    all_streams = len(rounds) * STREAMS
    assert 2 * hit > all_streams, f"the kills came when {all_streams - hit} of {all_streams} streams had ended"
    assert metric(port, "skein_request_moves_total") > 0
