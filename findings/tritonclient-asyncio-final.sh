#!/usr/bin/env bash
# Guess: the synchronous and the asyncio client of tritonclient take the same arguments for a request of a
# stream, and an argument that one of them does not know raises.
# Seen: in tritonclient 2.73.0, `async_stream_infer(enable_empty_final_response=True)` of the synchronous
# client sends the request parameter triton_enable_empty_final_response. The asyncio client's
# `stream_infer` takes a dict for each request and ignores that key, as it ignores any key that it does
# not know: nothing is sent, nothing is raised. The parameter cannot be given by hand, either: names that
# begin with `triton_` are reserved, and the stream is cancelled (asyncio.CancelledError) without the
# reason. So an asyncio client never asks for an empty last response; a server that marks the end only
# there leaves it waiting.
# Run with tritonclient 2.73.0 and grpcio 1.85.3 on this machine; a download of 30 MB, and 20 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install 'tritonclient[grpc]==2.73.0' grpcio==1.85.3
cat >"$T/final.py" <<'PY'
import asyncio
import queue
from concurrent import futures

import grpc
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2 as kserve
from tritonclient.grpc import service_pb2_grpc


class Scripted(service_pb2_grpc.GRPCInferenceServiceServicer):
    sent = []

    def ModelStreamInfer(self, requests, context):
        for request in requests:
            Scripted.sent.append(sorted(request.parameters))
            yield kserve.ModelStreamInferResponse(infer_response=kserve.ModelInferResponse(id=request.id))


server = grpc.server(futures.ThreadPoolExecutor(2))
service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Scripted(), server)
address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
server.start()


def inputs():
    made = triton.InferInput("i", [1], "INT32")
    made.set_data_from_numpy(np.array([1], np.int32))
    return [made]


def synchronous(**options):
    answers = queue.Queue()
    with triton.InferenceServerClient(address) as client:
        client.start_stream(callback=lambda result, error: answers.put(error))
        client.async_stream_infer("m", inputs(), **options)
        assert answers.get(timeout=10) is None
        client.stop_stream()


def asynchronous(**options):
    async def requests():
        yield {"model_name": "m", "inputs": inputs(), **options}

    async def ask():
        async with triton_aio.InferenceServerClient(address) as client:
            async for _, error in client.stream_infer(requests()):
                assert error is None

    asyncio.run(ask())


asked = {"enable_empty_final_response": True}
by_hand = {"parameters": {"triton_enable_empty_final_response": True}}
cases = [
    ("synchronous, default", synchronous, {}, []),
    ("synchronous, asked", synchronous, asked, ["triton_enable_empty_final_response"]),
    ("asyncio, default", asynchronous, {}, []),
    ("asyncio, asked", asynchronous, asked, []),
    ("asyncio, an unknown key", asynchronous, {"no_such_argument": 1}, []),
    ("asyncio, by hand", asynchronous, by_hand, "CancelledError"),
]
for name, ask, options, expected in cases:
    Scripted.sent.clear()
    try:
        ask(**options)
        seen = Scripted.sent[0]
    except asyncio.CancelledError:
        seen = "CancelledError"
    print(f"{name}: {seen}")
    assert seen == expected, f"this has changed: {expected} before"
server.stop(None)
PY
"$T/v/bin/python" "$T/final.py"
