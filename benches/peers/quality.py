#!/usr/bin/env python3
"""What Skein, llama.cpp and OpenVINO GenAI lose by their arithmetic, on a real model in types of GGUF.

    benches/peers/quality.py SKEIN FILE.gguf WORK [TYPE...]

Run it in the environment of benches/peers/run --install. FILE is that of tests/real/run. Its values are
decoded by gguf-py, and llama.cpp's own quantiser makes the other types (as_is: FILE itself). For each file,
what the programs compute is compared with the same codes, decoded to 32 bits and computed by llama.cpp
without rounding; for FILE these numbers equal transformers' (tests/real/goldens.json), or the script ends.
OpenVINO tells only the log probabilities of the text's own tokens, and does not read every type. WORK keeps
the files, about 1 GB a type.
"""

import json
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
REAL = pathlib.Path(__file__).resolve().parents[2] / "tests" / "real"
sys.path.insert(0, str(REAL))
import gguf  # noqa: E402
import llama_cpp  # noqa: E402
import numpy as np  # noqa: E402
from gguf.quants import dequantize  # noqa: E402
from gguf_files import quantise  # noqa: E402
from serving import NAME, Server  # noqa: E402

TYPES = ["as_is", "q8_0", "q6_k", "q4_k_m", "q4_0"]
# Ways to quantise at load, with the peer's file that has as many bits
AT_LOAD = {"int8": "q8_0", "int4": "q4_0"}
LIKELIEST, WINDOW, EXACT = 20, 512, 2e-4


def decoded(source: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """The same values in 32 bits."""
    if out.exists():
        return out
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(str(out) + ".part", reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        shape = [int(size) for size in tensor.shape[::-1]]
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    pathlib.Path(str(out) + ".part").rename(out)
    return out


class Llama:
    """llama.cpp with its defaults, or without rounding keys and values."""

    def __init__(self, path: pathlib.Path, is_exact: bool = False):
        kinds = dict.fromkeys(("type_k", "type_v"), llama_cpp.GGML_TYPE_F32) if is_exact else {}
        self.model = llama_cpp.Llama(str(path), n_ctx=512, n_batch=512, logits_all=True, verbose=False, **kinds)

    def log_probs(self, window: np.ndarray) -> np.ndarray:
        """[tokens - 1, vocabulary], double precision."""
        self.model.reset()
        self.model.eval(window.tolist())
        logits = np.array(self.model.scores[:len(window) - 1], np.float64)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class Sums:
    def __init__(self):
        self.divergence, self.errors, self.next = 0, [], []

    def add(self, window: np.ndarray, own: np.ndarray, reference: np.ndarray) -> None:
        rows = np.arange(len(own))
        likely = np.argpartition(reference, -LIKELIEST, axis=-1)[:, -LIKELIEST:]
        self.divergence += (np.exp(reference) * (reference - own)).sum()
        self.errors += np.abs(own - reference)[rows[:, None], likely].mean(-1).tolist()
        self.next += own[rows, window[1:]].tolist()


def of_skein(skein: str, model: pathlib.Path, reference: pathlib.Path, *flags: str) -> tuple[float, float]:
    """Divergence from the reference, and mean error of its 20 most likely tokens."""
    command = [skein, "bench", "perplexity", model, "--reference", reference, "--tokens", REAL / "tokens.u16", "--json", *flags]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return said["mean_kl_divergence"], said["mean_log_prob_error_of_20"]


def served(skein: str, model: pathlib.Path, windows: np.ndarray, *flags: str) -> list[float]:
    """Log probabilities of the windows' tokens but their first, from the API of a server."""
    found = []
    with Server(skein, model, "--workers", "1", "--max-model-len", "1024", *flags) as server:
        for window in windows.tolist():
            asked = {"model": NAME, "prompt": window, "max_tokens": 1, "prompt_logprobs": 0}
            of_tokens = server.post("/v1/completions", asked)["choices"][0]["prompt_logprobs"][1:]
            found += [of_token[str(token)]["logprob"] for of_token, token in zip(of_tokens, window[1:], strict=True)]
    return found


def of_openvino(model: pathlib.Path) -> list[float] | None:
    """The same of OpenVINO GenAI with its defaults, in a process of its own; None if it cannot read it."""
    ran = subprocess.run([sys.executable, __file__, "--openvino", model], capture_output=True, text=True)
    if ran.returncode != 0:
        print(f"OpenVINO, {model}: {ran.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return json.loads(ran.stdout.splitlines()[-1])


def openvino_log_probs(model: str) -> None:
    import openvino
    import openvino_genai
    windows = np.fromfile(REAL / "tokens.u16", "<u2").reshape(-1, WINDOW).astype(np.int64)
    settings = openvino_genai.SchedulerConfig()
    settings.num_kv_blocks, settings.max_num_batched_tokens = 64, WINDOW
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, settings, "CPU")
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.logprobs, config.echo, config.do_sample = 1, 1, True, False
    found = []
    for number, window in enumerate(windows):
        handle = pipeline.add_request(number, openvino.Tensor(window[None]), config)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        found += handle.read_all()[0].generated_log_probs[1:WINDOW]  # the first token has none
    print(json.dumps(found))


def row(name: str, program: str, expected: np.ndarray, found: list[float] | None, more: tuple[float, float] | None = None) -> None:
    if found is None:
        print(f"| {name} | {program} | not read | | | | |", flush=True)
        return
    found = np.array(found)
    exact, own = np.exp(-expected.mean()), np.exp(-found.mean())
    rest = f"{more[0]:.5f} | {more[1]:.4f}" if more else "– | –"
    print(f"| {name} | {program} | {own:.3f} | {100 * (own / exact - 1):+.2f}% | {np.abs(found - expected).mean():.4f} | {rest} |", flush=True)


def main() -> None:
    skein, source, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    kinds = sys.argv[4:] or TYPES
    work.mkdir(parents=True, exist_ok=True)
    windows = np.fromfile(REAL / "tokens.u16", "<u2").reshape(-1, WINDOW).astype(np.int64)
    origin = decoded(source, work / "as_is-f32.gguf")
    print(f"llama-cpp-python {llama_cpp.__version__}; {len(windows)} windows of {WINDOW} tokens; lost against the same codes in 32 bits\n")
    print("| | | perplexity | | error, next token | KL | error, 20 best |\n|---|---|--:|--:|--:|--:|--:|")
    for kind in kinds:
        compare(skein, (kind, source, origin), work, windows)


def compare(skein: str, which: tuple[str, pathlib.Path, pathlib.Path], work: pathlib.Path, windows: np.ndarray) -> None:
    kind, source, origin = which
    path = source if kind == "as_is" else work / f"{kind}.gguf"
    if not path.exists():
        quantise(str(origin), str(path) + ".part", kind)
        pathlib.Path(str(path) + ".part").rename(path)
    flat = origin if kind == "as_is" else decoded(path, work / f"{kind}-f32.gguf")
    reference, model = Llama(flat, is_exact=True), Llama(path)
    exact, ours, of_origin, lost = Sums(), Sums(), Sums(), Sums()
    at_load = [way for way, like in AT_LOAD.items() if like == kind]
    before = Llama(origin, is_exact=True) if at_load else None
    for window in windows:
        expected, own = reference.log_probs(window), model.log_probs(window)
        exact.add(window, expected, expected)
        ours.add(window, own, expected)
        if before:
            whole = before.log_probs(window)
            of_origin.add(window, whole, whole)
            lost.add(window, own, whole)
    expected, tokens = np.array(exact.next), len(exact.next)
    unrounded, golden = np.exp(-expected.mean()), json.loads((REAL / "goldens.json").read_text())["perplexity"]
    if kind == "as_is" and abs(unrounded / golden - 1) > EXACT:
        sys.exit(f"llama.cpp computes {unrounded} without rounding, and transformers {golden}")
    mean = lambda sums: (sums.divergence / tokens, float(np.mean(sums.errors)))
    print(f"| {kind} | the codes in 32 bits | {unrounded:.3f} | | | | |", flush=True)
    row(kind, "Skein", expected, served(skein, path, windows), of_skein(skein, path, flat))
    row(kind, "llama.cpp", expected, ours.next, mean(ours))
    row(kind, "OpenVINO", expected, of_openvino(path))
    for way in at_load:
        flags, all_of = ["--quantization", way], np.array(of_origin.next)
        row(f"{way} at load", "Skein", all_of, served(skein, origin, windows, *flags), of_skein(skein, origin, origin, *flags))
        row(f"– as {kind}", "llama.cpp", all_of, lost.next, mean(lost))


if __name__ == "__main__":
    openvino_log_probs(sys.argv[2]) if sys.argv[1] == "--openvino" else main()
