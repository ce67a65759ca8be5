"""KServe v2 by NVIDIA's own client, as users of Triton's vLLM backend and TensorRT-LLM's ensemble call it."""

import json
import os
import queue
import subprocess
import time
import urllib.request

import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from running import free_port
from tritonclient.utils import InferenceServerException

MODEL = "skein-7m"


@pytest.fixture(scope="module")
def client(cluster):
    with triton.InferenceServerClient(cluster.address) as open_client:
        yield open_client


def tensor(name, datatype, *elements, shape=None):
    kinds = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32}
    elements = [element.encode() if isinstance(element, str) else element for element in elements]
    array = np.array(elements, dtype=kinds[datatype]).reshape(shape or [len(elements)])
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def vllm_inputs(prompt, stream=False, **sampling):
    """What the sample client of Triton's vLLM backend sends: numbers as text within JSON."""
    return [
        tensor("text_input", "BYTES", prompt),
        tensor("stream", "BOOL", stream),
        tensor("sampling_parameters", "BYTES", json.dumps({name: str(value) for name, value in sampling.items()})),
        tensor("exclude_input_in_output", "BOOL", True),
    ]


def tensorrt_inputs(prompt, stream=False, max_tokens=8):
    """What clients of TensorRT-LLM's ensemble send: a tensor for each parameter, with a batch dimension."""
    return [
        tensor("text_input", "BYTES", prompt, shape=[1, 1]),
        tensor("max_tokens", "INT32", max_tokens, shape=[1, 1]),
        tensor("bad_words", "BYTES", "", shape=[1, 1]),
        tensor("stop_words", "BYTES", "", shape=[1, 1]),
        tensor("temperature", "FP32", 0.0, shape=[1, 1]),
        tensor("top_k", "INT32", 1, shape=[1, 1]),
        tensor("random_seed", "UINT64", 2**64 - 1, shape=[1, 1]),
        tensor("beam_width", "INT32", 1, shape=[1, 1]),
        tensor("stream", "BOOL", stream, shape=[1, 1]),
        tensor("exclude_input_in_output", "BOOL", True, shape=[1, 1]),
    ]


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


class Stream:
    """The responses of a stream, as its callback gets them."""

    def __init__(self, client, **options):
        self.client, self.responses = client, queue.Queue()
        client.start_stream(callback=lambda result, error: self.responses.put((result, error)), **options)

    def next(self):
        return self.responses.get(timeout=60)

    def texts(self):
        """Texts of one request, up to its final response."""
        texts = []
        while True:
            result, error = self.next()
            assert error is None, error
            texts += [text.decode() for text in result.as_numpy("text_output").flatten()]
            if is_final(result):
                return texts


@pytest.fixture
def stream(cluster):
    with triton.InferenceServerClient(cluster.address) as client:
        yield Stream(client)
        client.stop_stream(cancel_requests=True)


def cancelled(cluster):
    """Number of requests that ended because their client left."""
    with urllib.request.urlopen(f"http://{cluster.address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counts = (line for line in lines if line.startswith("skein_request_outcomes_total") and 'outcome="cancelled"' in line)
    return sum(float(line.split()[-1]) for line in counts)


def test_server_and_model(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("nope") and not client.is_model_ready(MODEL, "2")
    assert client.get_server_metadata().name == "skein"
    assert [(model.name, model.state) for model in client.get_model_repository_index().models] == [(MODEL, "READY")]
    metadata = client.get_model_metadata(MODEL)
    assert {"text_input", "stream", "sampling_parameters", "max_tokens"} <= {tensor.name for tensor in metadata.inputs}
    assert metadata.outputs[0].name == "text_output" and metadata.outputs[0].datatype == "BYTES"
    config = client.get_model_config(MODEL).config
    assert config.model_transaction_policy.decoupled and config.max_batch_size == 0
    assert [tensor.name for tensor in config.input if not tensor.optional] == ["text_input"]
    with pytest.raises(InferenceServerException) as error:
        client.get_model_metadata("nope")
    assert error.value.status() == "StatusCode.NOT_FOUND"


def test_whole_answers_equal_those_of_http(client, cluster):
    body = {"model": MODEL, "prompt": "import os\n", "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        f"http://{cluster.address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = json.load(answer)["choices"][0]["text"]
    vllm = client.infer(MODEL, vllm_inputs("import os\n", max_tokens=16, temperature=0), request_id="any id 1")
    assert vllm.as_numpy("text_output").tolist() == [text.encode()]
    assert vllm.get_response().id == "any id 1"
    tensorrt = client.infer(MODEL, tensorrt_inputs("import os\n", max_tokens=16))
    assert tensorrt.as_numpy("text_output").tolist() == [[text.encode()]]
    parameters = {"max_tokens": 16, "temperature": 0.0, "exclude_input_in_output": True}
    by_parameters = client.infer(MODEL, [tensor("text_input", "BYTES", "import os\n")], parameters=parameters)
    assert by_parameters.as_numpy("text_output").tolist() == [text.encode()]
    parameters["exclude_input_in_output"] = False
    echoed = client.infer(MODEL, [tensor("text_input", "BYTES", "import os\n")], parameters=parameters)
    assert echoed.as_numpy("text_output").tolist() == [b"import os\n" + text.encode()]


def test_more_outputs(client):
    flags = ["finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"]
    inputs = vllm_inputs("import os\n", max_tokens=4, temperature=0, ignore_eos="true", logprobs=2)
    result = client.infer(MODEL, inputs + [tensor(f"return_{flag}", "BOOL", True) for flag in flags])
    assert result.as_numpy("finish_reason").tolist() == [b"length"]
    assert result.as_numpy("num_output_tokens").tolist() == [4]
    assert result.as_numpy("num_input_tokens")[0] > 1
    logprobs = json.loads(result.as_numpy("logprobs")[0])
    best = [max(position.values(), key=lambda token: token["logprob"])["logprob"] for position in logprobs]
    assert len(best) == 4
    assert result.as_numpy("cumulative_logprob")[0] == pytest.approx(sum(best), abs=1e-4)
    tokens = [tensor("input_ids", "INT32", 300, 301), tensor("max_tokens", "INT32", 3), tensor("ignore_eos", "BOOL", True)]
    outputs = [triton.InferRequestedOutput("output_ids"), triton.InferRequestedOutput("text_output")]
    result = client.infer(MODEL, tokens, outputs=outputs)
    assert len(result.as_numpy("output_ids")) == 3
    assert result.as_numpy("finish_reason") is None


def test_a_stream_is_the_whole_answer_in_parts(client, stream):
    for inputs in [vllm_inputs, tensorrt_inputs]:
        whole = client.infer(MODEL, inputs("def a", max_tokens=24)).as_numpy("text_output").flatten()
        if inputs is vllm_inputs:
            sampling = dict(max_tokens=24, temperature=0)
            whole = client.infer(MODEL, inputs("def a", **sampling)).as_numpy("text_output").flatten()
            stream.client.async_stream_infer(MODEL, inputs("def a", stream=True, **sampling))
        else:
            stream.client.async_stream_infer(MODEL, inputs("def a", stream=True, max_tokens=24))
        texts = stream.texts()
        assert len(texts) > 1
        assert "".join(texts).encode() == whole[0]
    stream.client.async_stream_infer(
        MODEL, vllm_inputs("def a", max_tokens=2), enable_empty_final_response=True, request_id="not streamed"
    )
    assert len(stream.texts()) == 1


def test_requests_of_one_stream_interleave_and_keep_their_ids(stream):
    count = 8
    for number in range(count):
        inputs = vllm_inputs(f"def f{number}", stream=True, max_tokens=16, temperature=0, ignore_eos="true")
        stream.client.async_stream_infer(MODEL, inputs, request_id=f"id {number}")
    finals, order = set(), []
    while len(finals) < count:
        result, error = stream.next()
        assert error is None, error
        order.append(result.get_response().id)
        if is_final(result):
            finals.add(order[-1])
    assert finals == {f"id {number}" for number in range(count)}
    assert order != sorted(order), "they ran at once"


def test_errors(client, stream, cluster):
    def status(inputs, model=MODEL, **options):
        with pytest.raises(InferenceServerException) as error:
            client.infer(model, inputs, **options)
        return error.value.status(), error.value.message()

    prompt = tensor("text_input", "BYTES", "a")
    assert status([prompt], "nope")[0] == "StatusCode.NOT_FOUND"
    code, message = status([prompt, tensor("temperature", "FP32", 7.0)])
    assert (code, "temperature must be in [0, 2], got 7" in message) == ("StatusCode.INVALID_ARGUMENT", True)
    assert "`image`" in status([prompt, tensor("image", "BYTES", "")])[1]
    assert "ModelStreamInfer" in status([prompt, tensor("stream", "BOOL", True)])[1]
    outputs = [triton.InferRequestedOutput("logits")]
    assert "`logits`" in status([prompt], outputs=outputs)[1]
    # In a stream an error ends its request only.
    stream.client.async_stream_infer(MODEL, vllm_inputs("a", stream=True, temperature=7), request_id="hot")
    result, error = stream.next()
    assert result is None and "temperature must be in [0, 2]" in error.message()
    stream.client.async_stream_infer(MODEL, vllm_inputs("a", stream=True, max_tokens=2))
    assert stream.texts()
    # Or the stream, with a status, if the client asks for that.
    with triton.InferenceServerClient(cluster.address) as other:
        strict = Stream(other, headers={"triton_grpc_error": "true"})
        other.async_stream_infer(MODEL, vllm_inputs("a", stream=True, temperature=7))
        assert strict.next()[1].status() == "StatusCode.INVALID_ARGUMENT"
        other.stop_stream()


def test_closing_a_stream_cancels_its_requests(cluster):
    before = cancelled(cluster)
    with triton.InferenceServerClient(cluster.address) as client:
        stream = Stream(client)
        for number in range(4):
            # Long enough that none can have ended.
            inputs = vllm_inputs(f"def f{number}", stream=True, max_tokens=900, n=8, ignore_eos="true")
            client.async_stream_infer(MODEL, inputs, request_id=str(number))
        begun = set()
        while len(begun) < 4:
            result, error = stream.next()
            assert error is None, error
            begun.add(result.get_response().id)
        client.stop_stream(cancel_requests=True)
    deadline = time.monotonic() + 10
    while cancelled(cluster) < before + 4:
        assert time.monotonic() < deadline, f"{cancelled(cluster) - before} of 4 requests were cancelled"
        time.sleep(0.05)


def test_a_router_before_kserve_servers(cluster):
    """Skein before Skein by KServe: OpenAI's client gets the answers of the server behind."""
    port = free_port()
    arguments = ["router", "--worker-urls", f"grpc://{cluster.address}", "--port", str(port), "--log-level", "warn"]
    router = subprocess.Popen([os.environ["TEST_BINARY"], *arguments], stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and router.poll() is None, "the router is not ready"
                time.sleep(0.05)
        before, behind = (
            openai.OpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0)
            for address in (f"127.0.0.1:{port}", cluster.address)
        )
        assert [model.id for model in before.models.list()] == [MODEL]
        request = dict(model=MODEL, prompt="def add(a", max_tokens=24, temperature=0.7, seed=5, stop=["\n\n\n"])
        whole, expected = before.completions.create(**request), behind.completions.create(**request)
        assert whole.choices[0].text == expected.choices[0].text
        assert whole.choices[0].finish_reason == expected.choices[0].finish_reason
        assert whole.usage.completion_tokens == expected.usage.completion_tokens
        assert whole.usage.prompt_tokens == expected.usage.prompt_tokens
        events = list(before.completions.create(**request, stream=True))
        assert "".join(event.choices[0].text for event in events) == expected.choices[0].text
        assert len(events) > 2
        two = before.completions.create(**request, n=2)
        assert [choice.text for choice in two.choices] == [
            choice.text for choice in behind.completions.create(**request, n=2).choices
        ]
        with pytest.raises(openai.BadRequestError, match="temperature must be in"):
            before.completions.create(model=MODEL, prompt="a", temperature=7)
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            before.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])
    finally:
        router.terminate()
        router.wait(timeout=30)


@pytest.mark.parametrize("stream", [False, True])
def test_async_client(cluster, stream):
    import asyncio

    async def ask():
        async with triton_aio.InferenceServerClient(cluster.address) as client:
            async def requests():
                for number in range(3):
                    inputs = vllm_inputs(f"def f{number}", stream=stream, max_tokens=6, temperature=0)
                    yield {"model_name": MODEL, "inputs": inputs, "request_id": str(number)}

            finals = set()
            async for result, error in client.stream_infer(requests()):
                assert error is None, error
                if is_final(result):
                    finals.add(result.get_response().id)
            return finals

    assert asyncio.run(ask()) == {"0", "1", "2"}
