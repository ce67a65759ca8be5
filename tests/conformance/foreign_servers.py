#!/usr/bin/env python3
"""`skein router --worker-urls` before real servers that are not ours, driven by OpenAI's SDK.

    pip install openai
    tests/conformance/foreign_servers.py SKEIN --model NAME --server 'llama-server -m FILE.gguf --port {port}'
    tests/conformance/foreign_servers.py SKEIN --model DIR --server 'transformers serve DIR --port {port}'

Starts two of the server. Checks that answers and streams are those of a server alone (greedy), that one
killed server costs no request that has not begun, that a cut stream ends with an error event, and, with
--continues, that it continues by text to its full length. Run by hand: these servers are large, and CI does
not install them.
"""

import argparse
import concurrent.futures
import shlex
import socket
import subprocess
import sys
import time
import urllib.request

import openai

READY_LIMIT_S, END_LIMIT_S = 180, 20
MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers"}]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--server", required=True, help="command of one server; {port} is replaced")
    parser.add_argument("--model", required=True, help="model name in requests")
    parser.add_argument("--continues", action="store_true", help="the server continues a last message of the assistant")
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def wait_for(url: str, process: subprocess.Popen) -> None:
    give_up = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < give_up:
        assert process.poll() is None, f"{url}: the process has ended"
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} was not ready within {READY_LIMIT_S} s")


class Scene:
    def __init__(self, args: argparse.Namespace):
        self.args, self.processes = args, []
        ports = [free_port(), free_port()]
        self.servers = [self.run(shlex.split(args.server.format(port=port))) for port in ports]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url, server in zip(self.urls, self.servers):
            wait_for(f"{url}/health", server)
        port = free_port()
        self.router_url = f"http://127.0.0.1:{port}"
        urls = [word for url in self.urls for word in ("--worker-urls", url)]
        router = [args.binary, "router", *urls, "--port", str(port), "--log-level", "warn"]
        router = self.run([*router, "--policy", "round_robin"])
        wait_for(f"{self.router_url}/health", router)

    def run(self, command: list[str]) -> subprocess.Popen:
        self.processes.append(start(command))
        return self.processes[-1]

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def client(self, url: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)

    def ask(self, url: str, tokens: int = 24) -> str:
        answer = self.client(url).chat.completions.create(
            model=self.args.model, messages=MESSAGES, temperature=0, max_tokens=tokens
        )
        return answer.choices[0].message.content

    def refusal(self, url: str) -> int:
        try:
            self.client(url).chat.completions.create(model=self.args.model, messages="none")
        except openai.APIStatusError as error:
            return error.status_code
        raise AssertionError("the server accepts what is not a list of messages")

    def stream(self, url: str, tokens: int = 24, kill: subprocess.Popen | None = None, **headers: str) -> str:
        events = self.client(url).chat.completions.create(
            model=self.args.model, messages=MESSAGES, temperature=0, max_tokens=tokens, stream=True, extra_headers=headers
        )
        text = ""
        for event in events:
            text += (event.choices[0].delta.content or "") if event.choices else ""
            if kill is not None and len(text) > 10:
                kill.kill()
                kill.wait()
                kill = None
        return text


def passed(what: str) -> None:
    print(f"ok: {what}", flush=True)


def check(scene: Scene) -> None:
    alone, router = scene.urls[0], scene.router_url
    listed = {model.id for model in scene.client(router).models.list()}
    assert listed == {model.id for model in scene.client(alone).models.list()}, listed
    passed(f"models: {len(listed)}")
    expected = scene.ask(alone)
    assert expected and scene.ask(router) == expected and scene.stream(router) == scene.stream(alone) == expected
    passed("an answer and a stream are those of a server alone")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: scene.stream(router), range(16)))
    assert texts == [expected] * 16, texts
    passed("16 streams, 8 at once")
    refused = [scene.refusal(url) for url in (alone, router)]
    assert refused[0] == refused[1], refused
    passed(f"a server's own refusal arrives: {refused[0]}")
    check_killed(scene, router)


def check_killed(scene: Scene, router: str) -> None:
    # Round robin: whichever server has the stream, one of the two kills hits it.
    victim, survivor = scene.servers
    long, cut = 400, False
    whole = scene.stream(scene.urls[1], long)
    for _ in range(2):
        headers = {"x-skein-resume": "text"} if scene.args.continues else {}
        try:
            text = scene.stream(router, long, kill=None if victim.poll() is not None else victim, **headers)
            if scene.args.continues:
                assert len(text) > len(whole) / 2, text
        except openai.APIError as error:
            assert "worker was lost" in str(error), error
            cut = True
    passed("a stream of a killed server continues by text" if scene.args.continues else f"it ends with an error: {cut}")
    assert survivor.poll() is None
    for _ in range(6):
        assert scene.stream(router, 8), "a request that has not begun is not lost"
    passed("the other server answers everything")


def main() -> None:
    scene = Scene(parse())
    try:
        check(scene)
    finally:
        scene.end()


if __name__ == "__main__":
    sys.exit(main())
