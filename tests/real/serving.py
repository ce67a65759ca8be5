"""Serves a real model and checks what random weights cannot show. Called by tests/real/run."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
NAME = "SmolLM2-135M-Instruct"
# Nats. transformers adds in another order.
LOG_PROB_ERROR = 2e-3
START_LIMIT_S, ANSWER_LIMIT_S = 120, 300
KILLS = 3
STORIES = ["Once upon a time", "The history of bread begins", "def parse(text):", "Dear Anna,"]
REPEATED = "def add(a, b):\n    return a + b\n\n\n" * 3
# Workers report their counts every 4 s.
REPORTED_S = 6
PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
}


class Server:
    """A cluster on this machine, ended with the block that it is for."""

    def __init__(self, binary: str, model: pathlib.Path, *flags: str):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        command = [binary, "serve", model, "--port", str(self.port), "--served-model-name", NAME, *flags]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.log)

    def __enter__(self):
        try:
            return self.ready()
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def ready(self):
        until = time.monotonic() + START_LIMIT_S
        while True:
            assert self.process.poll() is None, "skein ended before it answered"
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            assert time.monotonic() < until, f"not ready after {START_LIMIT_S} s"
            time.sleep(0.05)

    def __exit__(self, failure, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)
        if failure:
            self.log.seek(0)
            print(self.log.read(), file=sys.stderr)
        self.log.close()

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps({"model": NAME, **body}).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as answer:
            return json.load(answer)

    def text(self, **body) -> str:
        return self.post("/v1/completions", body)["choices"][0]["text"]

    def stream(self, on_text, **body) -> str:
        """A completion, token by token; fails if it ends early."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_LIMIT_S)
        connection.request("POST", "/v1/completions", json.dumps({"model": NAME, "stream": True, **body}),
                           {"content-type": "application/json"})
        text = ""
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += event["choices"][0]["text"] if event["choices"] else ""
                on_text()
            elif line.startswith(b"data: [DONE]"):
                return text
        raise AssertionError("a stream broke off")

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def workers(self) -> list[int]:
        """Process ids, by what the system says of the server's children."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError):
                parent = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]
                words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                if int(parent) == self.process.pid and words[1] == b"worker":
                    found.append(int(entry))
        return found


def chats(server: Server, goldens: dict) -> str:
    """Prompts and greedy answers are those of transformers."""
    for chat in goldens["chats"]:
        asked = {"messages": chat["messages"]}
        prompt = server.post("/tokenize", {**asked, "add_generation_prompt": True})["tokens"]
        assert prompt == chat["prompt"], f"{chat['messages']} renders as {prompt}, transformers: {chat['prompt']}"
        answer = server.post("/v1/chat/completions", {**asked, "temperature": 0, "max_tokens": 48})
        text = answer["choices"][0]["message"]["content"]
        assert text == chat["answer"], f"{text!r}, transformers: {chat['answer']!r}"
    return f"{len(goldens['chats'])} chats have transformers' prompts and greedy answers"


def scores(logprobs: dict) -> list[float]:
    return [entry["logprob"] for entry in logprobs["content"]]


def rollouts(server: Server, goldens: dict) -> str:
    """Tokens and log probabilities for training, the stop token's too, are those of transformers. Scored
    again as a prompt, sampled ones have the same bits."""
    worst, stops, scored = 0.0, 0, 0
    for seed, chat in enumerate(goldens["chats"]):
        def generate(token_ids, **sampling):
            return server.post("/inference/v1/generate", {"token_ids": token_ids, "sampling_params": sampling})

        greedy = generate(chat["prompt"], temperature=0, max_tokens=48, logprobs=0)["choices"][0]
        assert greedy["token_ids"] == chat["token_ids"], f"{greedy['token_ids']}, transformers: {chat['token_ids']}"
        found = scores(greedy["logprobs"])
        worst = max(worst, *(abs(own - theirs) for own, theirs in zip(found, chat["log_probs"], strict=True)))
        assert worst < LOG_PROB_ERROR, f"log probabilities differ from transformers' by {worst}"
        stops += greedy["finish_reason"] == "stop"
        rollout = generate(chat["prompt"], temperature=1, max_tokens=100, logprobs=0, seed=seed)["choices"][0]
        whole = chat["prompt"] + rollout["token_ids"]
        again = generate(whole, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"][len(chat["prompt"]):]
        again = [of_token[str(token)]["logprob"] for of_token, token in zip(again, rollout["token_ids"], strict=True)]
        assert again == scores(rollout["logprobs"]), f"scored again: {again}, drawn: {scores(rollout['logprobs'])}"
        scored += len(again)
    assert stops > 0, "no answer ended by itself"
    return f"log probabilities of answers differ by {worst:.1e}, {stops} stop tokens among them; {scored} scored again have the same bits"


def adapter(server: Server, goldens: dict) -> str:
    """Log probabilities of a text, also of an adapter's, are those of transformers and PEFT."""
    ids = [token for token, in struct.iter_unpack("<H", (HERE / "tokens.u16").read_bytes())]
    worst = {}
    for name, key in ((NAME, "log_probs"), ("adapter", "adapted_log_probs")):
        expected = goldens[key]
        asked = {"model": name, "prompt": ids[:len(expected) + 1], "max_tokens": 1, "prompt_logprobs": 0}
        found = server.post("/v1/completions", asked)["choices"][0]["prompt_logprobs"][1:]
        found = [of_token[str(token)]["logprob"] for of_token, token in zip(found, ids[1:], strict=False)]
        worst[name] = max(abs(own - theirs) for own, theirs in zip(found, expected, strict=True))
        assert worst[name] < LOG_PROB_ERROR, f"{name}: log probabilities differ from transformers' by {worst[name]}"
    changed = max(abs(a - b) for a, b in zip(goldens["log_probs"], goldens["adapted_log_probs"], strict=True))
    return f"log probabilities differ by {worst[NAME]:.1e}, of a LoRA adapter by {worst['adapter']:.1e}; the adapter changes them by {changed:.2f}"


def asked(number: int) -> dict:
    """Half of the requests are greedy."""
    return {"prompt": STORIES[number], "max_tokens": 160, "ignore_eos": True, "seed": number, "temperature": number % 2}


def kills(server: Server, _: dict) -> str:
    """Streams whose worker is killed are those of an undisturbed cluster."""
    expected = [server.text(**asked(number)) for number in range(len(STORIES))]
    for _kill in range(KILLS):
        until = time.monotonic() + START_LIMIT_S
        while len(server.workers()) < 2:
            assert time.monotonic() < until, f"no second worker after {START_LIMIT_S} s"
            time.sleep(0.05)
        begun = threading.Semaphore(0)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            streams = [pool.submit(server.stream, begun.release, **asked(number)) for number in range(len(STORIES))]
            events = 0
            while events < 40 and not all(stream.done() for stream in streams):
                events += begun.acquire(timeout=0.1)
            os.kill(server.workers()[0], signal.SIGKILL)
            assert [stream.result() for stream in streams] == expected
    moves = server.metric("skein_request_moves_total")
    assert moves > 0, "no stream had to move"
    return f"{KILLS * len(STORIES)} streams are the same through {KILLS} kills of a worker and {moves:.0f} moves"


def schemas(server: Server, _: dict) -> str:
    count = 12
    for seed in range(count):
        body = {"messages": [{"role": "user", "content": "Describe a person as JSON."}], "seed": seed, "temperature": 1.0, "max_tokens": 200,
                "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}}
        text = server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        person = json.loads(text)
        assert sorted(person) == ["age", "name", "tags"], text
        assert 1 <= len(person["name"]) <= 20 and type(person["age"]) is int and 1 <= person["age"] <= 120, text
        assert 1 <= len(person["tags"]) <= 3 and set(person["tags"]) <= {"red", "green", "blue"}, text
    return f"{count} of {count} answers fit their JSON schema at temperature 1"


def repeated(server: Server) -> tuple[list[str], float]:
    """Answers that repeat their prompt, and the engine's steps for them."""
    answers = [server.text(prompt=REPEATED, max_tokens=96, temperature=temperature, seed=7) for temperature in (0, 0.7)]
    steps, before = 0.0, None
    while steps == 0 or steps != before:
        time.sleep(REPORTED_S)
        before, steps = steps, server.metric("skein_engine_steps_total")
    return answers, steps


def speculation(binary: str, model: pathlib.Path) -> str:
    """Answers are the same with and without drafts, and drafts save steps."""
    common = ["--workers", "1", "--max-model-len", "1024", "--speculate"]
    with Server(binary, model, *common, "ngram") as drafting, Server(binary, model, *common, "off") as plain:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            (answers, steps), (expected, most) = pool.map(repeated, (drafting, plain))
    assert answers == expected, "drafts changed an answer"
    assert 0 < steps < most, f"{steps} steps with drafts, {most} without"
    return f"answers are the same with drafts, in {steps:.0f} steps instead of {most:.0f}"


def check(binary: str, model: pathlib.Path, goldens: dict) -> None:
    """Prints what passed; raises what did not."""
    exact = ["--workers", "1", "--max-model-len", "1024", "--dtype", "float32"]
    lora = ["--enable-lora", "--lora-modules", f"adapter={HERE / 'adapter'}"]
    with Server(binary, model, *exact, *lora) as server:
        for part in (chats, rollouts, adapter):
            print(f"passed: {part(server, goldens)}", flush=True)
    with Server(binary, model, "--workers", "2", "--max-model-len", "1024") as server:
        for part in (kills, schemas):
            print(f"passed: {part(server, goldens)}", flush=True)
    print(f"passed: {speculation(binary, model)}", flush=True)
