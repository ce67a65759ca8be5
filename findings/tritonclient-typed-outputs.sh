#!/usr/bin/env bash
# Guess: the KServe v2 protocol lets a server put the elements of an output either in
# `raw_output_contents` or in the typed lists of `contents`, so the best known client reads both.
# Seen: tritonclient 2.73.0 reads `raw_output_contents` only. For typed INT32, INT64, FP32, FP64 and BOOL
# lists it builds an empty array and then fails to give it the output's shape: ValueError. With the shape
# [0] it returns an empty array. BYTES lists have a branch of their own, which numpy 2 ends with
# ValueError ("Unable to avoid copy"). Both calls succeed; the error comes only when the caller asks for
# the array. Its own requests are always raw, an empty tensor as an entry of no bytes; an input that got
# no data has no entry, so there can be fewer entries than inputs. So a server has to answer in raw form,
# and must count entries before it pairs them with inputs.
# Run with tritonclient 2.73.0, numpy 2.4.6 and grpcio 1.85.3 on this machine; a download of 30 MB, and 20
# seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install 'tritonclient[grpc]==2.73.0' numpy==2.4.6 grpcio==1.85.3
cat >"$T/typed.py" <<'PY'
from concurrent import futures

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as kserve
from tritonclient.grpc import service_pb2_grpc

Output = kserve.ModelInferResponse.InferOutputTensor
Contents = kserve.InferTensorContents


class Scripted(service_pb2_grpc.GRPCInferenceServiceServicer):
    request, outputs, raw = None, [], []

    def ModelInfer(self, request, context):
        Scripted.request = request
        return kserve.ModelInferResponse(model_name="m", outputs=Scripted.outputs, raw_output_contents=Scripted.raw)


server = grpc.server(futures.ThreadPoolExecutor(2))
service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Scripted(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
client = triton.InferenceServerClient(f"127.0.0.1:{port}")


def tensor(name, datatype, array):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def read(datatype, shape, contents=None, raw=()):
    Scripted.outputs = [Output(name="o", datatype=datatype, shape=shape, contents=contents)]
    Scripted.raw = list(raw)
    result = client.infer("m", [tensor("i", "INT32", np.array([1], np.int32))])
    try:
        return result.as_numpy("o").tolist()
    except ValueError as error:
        return "ValueError: " + str(error).split("\n")[0]


cases = [
    ("raw BYTES", ("BYTES", [1], None, [b"\2\0\0\0hi"]), [b"hi"]),
    ("raw INT32", ("INT32", [1], None, [b"\7\0\0\0"]), [7]),
    ("typed BYTES", ("BYTES", [1], Contents(bytes_contents=[b"hi"])), "ValueError: Unable to avoid copy"),
    ("typed INT32", ("INT32", [1], Contents(int_contents=[7])), "ValueError: cannot reshape array of size 0"),
    ("typed INT64", ("INT64", [1], Contents(int64_contents=[7])), "ValueError: cannot reshape array of size 0"),
    ("typed FP32", ("FP32", [2], Contents(fp32_contents=[0.5, 1])), "ValueError: cannot reshape array of size 0"),
    ("typed FP64", ("FP64", [1], Contents(fp64_contents=[0.5])), "ValueError: cannot reshape array of size 0"),
    ("typed BOOL", ("BOOL", [1], Contents(bool_contents=[True])), "ValueError: cannot reshape array of size 0"),
    ("no elements", ("INT32", [0]), []),
]
for name, arguments, expected in cases:
    seen = read(*arguments)
    print(f"{name}: {seen}")
    same = seen.startswith(expected) if isinstance(expected, str) and isinstance(seen, str) else seen == expected
    assert same, f"this has changed: {expected} before"

inputs = [
    tensor("empty", "INT32", np.empty([0], np.int32)),
    tensor("texts", "BYTES", np.array([b"hi", "é", 7, None], np.object_)),
    triton.InferInput("no data", [1], "INT32"),
]
Scripted.outputs, Scripted.raw = [], []
client.infer("m", inputs)
raw = [bytes(entry) for entry in Scripted.request.raw_input_contents]
print(f"{len(Scripted.request.inputs)} inputs, raw entries {raw}")
assert raw == [b"", b"\2\0\0\0hi\2\0\0\0\xc3\xa9\1\0\0\x007\4\0\0\0None"], "this has changed"
client.close()
server.stop(None)
PY
"$T/v/bin/python" "$T/typed.py"
