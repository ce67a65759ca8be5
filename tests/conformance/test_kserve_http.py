"""KServe v2 over HTTP, by NVIDIA's own client and as plain requests."""

import asyncio
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

MODEL = "skein-7m"
PROMPT = "import os\n"
KINDS = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32}


@pytest.fixture(scope="module")
def client(cluster):
    with triton.InferenceServerClient(cluster.address) as open_client:
        yield open_client


def tensor(name, datatype, *elements, shape=None, binary=True, api=triton):
    elements = [element.encode() if isinstance(element, str) else element for element in elements]
    array = np.array(elements, dtype=KINDS[datatype]).reshape(shape or [len(elements)])
    made = api.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, **({"binary_data": binary} if api is triton else {}))
    return made


def inputs(prompt=PROMPT, binary=True, api=triton, shape=None):
    return [
        tensor("text_input", "BYTES", prompt, binary=binary, api=api, shape=shape),
        tensor("max_tokens", "INT32", 12, binary=binary, api=api, shape=shape),
        tensor("temperature", "FP32", 0.0, binary=binary, api=api, shape=shape),
        tensor("seed", "UINT64", 2**64 - 1, binary=binary, api=api, shape=shape),
        tensor("exclude_input_in_output", "BOOL", True, binary=binary, api=api, shape=shape),
    ]


@pytest.fixture(scope="module")
def expected(cluster):
    """The answer of the gRPC service."""
    with triton_grpc.InferenceServerClient(cluster.address) as client:
        return client.infer(MODEL, inputs(api=triton_grpc)).as_numpy("text_output").tolist()


def post(cluster, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(f"http://{cluster.address}{path}", data), timeout=60)


def test_server_and_model(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("org/nope") and not client.is_model_ready(MODEL, "2")
    assert client.get_server_metadata()["name"] == "skein"
    assert client.get_model_repository_index() == [{"name": MODEL, "version": "1", "state": "READY"}]
    metadata = client.get_model_metadata(MODEL, "1")
    assert {"text_input", "stream", "max_tokens"} <= {tensor["name"] for tensor in metadata["inputs"]}
    assert client.get_model_config(MODEL)["model_transaction_policy"] == {"decoupled": True}
    with pytest.raises(InferenceServerException, match="does not exist") as error:
        client.get_model_metadata("nope")
    assert error.value.status() == "404"
    with pytest.raises(InferenceServerException, match="no path") as error:
        client.load_model(MODEL)
    assert error.value.status() == "404"


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary_input", [False, True])
@pytest.mark.parametrize("binary_output", [None, False, True])
def test_whole_answers_equal_those_of_grpc(client, expected, binary_input, binary_output, compression):
    names = ["text_output", "finish_reason", "output_ids", "cumulative_logprob"]
    outputs = binary_output if binary_output is None else [
        triton.InferRequestedOutput(name, binary_data=binary_output) for name in names
    ]
    result = client.infer(
        MODEL,
        inputs(binary=binary_input),
        outputs=outputs,
        request_id="any id 1",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    # The client gives text of JSON as str, and of binary data as bytes.
    texts = [text.decode() for text in expected] if binary_output is False else expected
    assert result.as_numpy("text_output").tolist() == texts
    assert result.get_response()["id"] == "any id 1"
    if outputs:
        assert len(result.as_numpy("output_ids")) == 12 and result.as_numpy("output_ids").dtype == np.uint32
        assert result.as_numpy("finish_reason").tolist() == [b"length" if binary_output else "length"]
        assert result.as_numpy("cumulative_logprob")[0] < 0


def test_batch_dimension_parameters_and_tokens(client, expected):
    batched = client.infer(MODEL, inputs(shape=[1, 1]))
    assert batched.as_numpy("text_output").tolist() == [expected]
    parameters = {"max_tokens": 12, "temperature": 0.0, "exclude_input_in_output": True}
    plain = client.infer(MODEL, [tensor("text_input", "BYTES", PROMPT)], parameters=parameters, timeout=60_000_000)
    assert plain.as_numpy("text_output").tolist() == expected
    tokens = client.infer(MODEL, [tensor("input_ids", "INT32", 300, 301), tensor("max_tokens", "INT32", 3)])
    assert len(tokens.as_numpy("text_output")) == 1
    waiting = client.async_infer(MODEL, inputs())
    assert waiting.get_result().as_numpy("text_output").tolist() == expected


def test_the_asynchronous_client(cluster, expected):
    async def ask():
        async with triton_aio.InferenceServerClient(cluster.address) as client:
            results = await asyncio.gather(*(client.infer(MODEL, inputs()) for _ in range(4)))
            return [result.as_numpy("text_output").tolist() for result in results]

    assert asyncio.run(ask()) == [expected] * 4


def test_errors(client):
    def refused(*tensors, **options):
        with pytest.raises(InferenceServerException) as error:
            client.infer(options.pop("model", MODEL), list(tensors), **options)
        return error.value.status(), error.value.message()

    prompt = tensor("text_input", "BYTES", "a")
    assert refused(prompt, model="nope")[0] == "404"
    assert refused(prompt, tensor("temperature", "FP32", 7.0)) == ("400", "temperature must be in [0, 2], got 7.")
    assert "generate_stream" in refused(prompt, tensor("stream", "BOOL", True))[1]
    assert "`logits`" in refused(prompt, outputs=[triton.InferRequestedOutput("logits")])[1]
    shared = triton.InferInput("max_tokens", [1], "INT32")
    shared.set_shared_memory("region", 4)
    assert "shared memory is not supported" in refused(prompt, shared)[1]


def test_generate(cluster, expected):
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 12, "temperature": 0}, "exclude_input_in_output": True}
    with post(cluster, f"/v2/models/{MODEL}/generate", body) as answer:
        whole = json.load(answer)
    assert whole == {"model_name": MODEL, "model_version": "1", "text_output": expected[0].decode()}
    body["stream"] = True
    with post(cluster, f"/v2/models/{MODEL}/versions/1/generate_stream", body) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = [line for line in answer.read().decode().split("\n\n") if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == whole["text_output"]
    with pytest.raises(urllib.error.HTTPError) as error:
        post(cluster, f"/v2/models/{MODEL}/generate_stream", {"text_input": "a", "stream": True, "top_p": 7})
    assert error.value.code == 400
    assert json.load(error.value)["error"].startswith("top_p must be in")
