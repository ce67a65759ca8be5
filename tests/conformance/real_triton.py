#!/usr/bin/env python3
"""`skein router --worker-urls grpc://…` before two real Triton servers, driven by OpenAI's SDK.

    pip install openai nvidia-pytriton
    tests/conformance/real_triton.py SKEIN

The wheel nvidia-pytriton contains Triton itself with its Python backend. The model is a few lines of Python
with the tensors of Triton's vLLM backend; it says `t0 t1 t2 …` and continues what is behind a `|` in its
prompt. Run by hand: the wheel needs the glibc and the Python that it was built for; CI does not install it.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request

import openai
import pytriton
from running import free_port

READY_LIMIT_S = 60
TRITON = pathlib.Path(pytriton.__file__).parent / "tritonserver"
PACKAGES = str(TRITON.parents[1])
INPUTS = {"text_input": "STRING", "stream": "BOOL", "sampling_parameters": "STRING", "exclude_input_in_output": "BOOL"}
OUTPUTS = {"text_output": "STRING", "finish_reason": "STRING", "num_input_tokens": "UINT32", "num_output_tokens": "UINT32"}
MODEL = f"""
import sys
sys.path.insert(0, {PACKAGES!r})
""" + '''
import json, pathlib, threading, time
import numpy as np
import triton_python_backend_utils as triton

FINAL = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = pathlib.Path(args["model_repository"]).parents[1] / "cancelled"

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender())).start()

    def answer(self, request, sender):
        def given(name, default):
            tensor = triton.get_input_tensor_by_name(request, name)
            return tensor.as_numpy()[0] if tensor else default

        prompt, stream = given("text_input", b"").decode(), given("stream", False)
        sampling = json.loads(given("sampling_parameters", b"{}"))
        if sampling.get("temperature", 0) > 2:
            error = triton.TritonError("temperature is too high", triton.TritonError.INVALID_ARG)
            return sender.send(triton.InferenceResponse(output_tensors=[], error=error), flags=FINAL)
        said = len(prompt.partition("|")[2].split())
        words = [f"t{number} " for number in range(said, said + sampling["max_tokens"])]
        words = words if stream else ["".join(words)]
        for at, word in enumerate(words):
            time.sleep(sampling.get("pause", 0))
            if request.is_cancelled():
                self.cancelled.touch()
                return sender.send(flags=FINAL)
            last = at + 1 == len(words)
            outputs = [
                triton.Tensor("text_output", np.array([word.encode()], dtype=object)),
                triton.Tensor("finish_reason", np.array([b"length" if last else b"None"], dtype=object)),
                triton.Tensor("num_input_tokens", np.array([3], dtype=np.uint32)),
                triton.Tensor("num_output_tokens", np.array([len(word.split())], dtype=np.uint32)),
            ]
            sender.send(triton.InferenceResponse(output_tensors=outputs), flags=FINAL if last else 0)
'''


def make_repository(root: pathlib.Path) -> pathlib.Path:
    model = root / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    tensors = [f'input {{ name: "{name}" data_type: TYPE_{kind} dims: [ 1 ] }}' for name, kind in INPUTS.items()]
    tensors += [f'output {{ name: "{name}" data_type: TYPE_{kind} dims: [ -1 ] }}' for name, kind in OUTPUTS.items()]
    policy = "model_transaction_policy { decoupled: true } instance_group { kind: KIND_CPU count: 1 }"
    (model / "config.pbtxt").write_text("\n".join(['name: "m" backend: "python"', policy, *tensors]))
    # The stub for this Python goes beside the backend.
    backends = root / "backends"
    shutil.copytree(TRITON / "backends", backends)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(TRITON / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    return root


class Server:
    def __init__(self, root: pathlib.Path):
        self.grpc, self.http = free_port(), free_port()
        libraries = [TRITON.parents[1] / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
        command = [
            TRITON / "bin" / "tritonserver", f"--model-repository={root / 'models'}", f"--backend-directory={root / 'backends'}",
            f"--grpc-port={self.grpc}", f"--http-port={self.http}", "--allow-metrics=false", "--log-info=false", "--log-warning=false",
            f"--backend-config=python,shm-region-prefix-name=skein{self.grpc}",
        ]
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "PYTHONPATH": PACKAGES}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for(f"http://127.0.0.1:{self.http}/v2/health/ready", self.process)


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


def words(count: int) -> str:
    return "".join(f"t{number} " for number in range(count))


def text_of(events) -> str:
    return "".join(event.choices[0].text for event in events if event.choices)


def refused(call, status: int, message: str) -> None:
    try:
        call()
    except openai.APIStatusError as error:
        assert error.status_code == status and message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")


def passed(what: str) -> None:
    print(f"ok: {what}", flush=True)


def check(client: openai.OpenAI, metrics: str, servers: list[Server], root: pathlib.Path) -> None:
    def ask(tokens, **options):
        return client.completions.create(model="m", prompt="hi|", max_tokens=tokens, **options)

    assert [model.id for model in client.models.list()] == ["m"]
    whole = ask(5)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (words(5), "length")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 5)
    events = list(ask(5, stream=True, stream_options={"include_usage": True}))
    assert text_of(events) == words(5) and events[-1].usage.completion_tokens == 5
    passed("models, an answer, a stream, usage")
    for stream in (False, True):
        refused(lambda: ask(5, temperature=7, stream=stream), 400, "temperature is too high")
    refused(lambda: client.completions.create(model="x", prompt="a"), 404, "unknown model")
    refused(lambda: client.chat.completions.create(model="m", messages=[]), 400, "no chat template")
    passed("refusals")
    stream = ask(400, stream=True, extra_body={"pause": 0.05})
    next(iter(stream))
    stream.close()
    give_up = time.monotonic() + 10
    while not (root / "cancelled").exists():
        assert time.monotonic() < give_up, "Triton goes on"
        time.sleep(0.05)
    passed("a client that leaves cancels its request at Triton")
    text = ""
    for event in ask(30, stream=True, extra_body={"pause": 0.05}, extra_headers={"x-skein-resume": "text"}):
        text += event.choices[0].text
        if text == words(5):
            with urllib.request.urlopen(metrics, timeout=5) as answer:
                running = [line for line in answer.read().decode().splitlines() if line.startswith("skein_worker_running{")]
            busy = next(line for line in running if line.endswith(" 1"))
            victim = next(server for server in servers if f":{server.grpc}\"" in busy)
            os.killpg(victim.process.pid, signal.SIGKILL)
    assert text == words(30), text
    assert ask(3).choices[0].text == words(3)
    passed("a killed Triton: its stream continues by text on the other one")


def main() -> None:
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        root = make_repository(pathlib.Path(folder))
        try:
            servers = []
            for _ in range(2):
                servers.append(Server(root))
                processes.append(servers[-1].process)
            port = free_port()
            urls = ",".join(f"grpc://127.0.0.1:{server.grpc}" for server in servers)
            router = [sys.argv[1], "router", "--worker-urls", urls, "--port", str(port), "--log-level", "warn"]
            processes.append(subprocess.Popen(router, stdin=subprocess.DEVNULL))
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/readyz", processes[-1])
            client = openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0, timeout=60)
            check(client, f"{address}/metrics", servers, root)
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(timeout=60)


main()
