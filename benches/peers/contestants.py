"""The contestants: Skein as `skein bench latency`, in a new process per measurement; peers in long-running
processes.

Every contestant answers `measure(question)` with tokens per second, or with None and the reason in `trouble`.
Its `prefill_rate` is that of the latest prompts, also of those before decoding.
"""

import json
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ANSWER_LIMIT_S = 600  # a measurement of Skein that takes longer is stuck
END_LIMIT_S = 20  # how long a peer may take to end once its input is closed
SKEIN_WIDTH_FLAGS = {16: [], 8: ["--quantization", "int8"], 4: ["--quantization", "int4"]}
# What each peer reads at a width; a peer without an entry is not measured there.
FILES = {
    "L": {16: "bf16.gguf", 8: "q8_0.gguf", 4: "q4_0.gguf"},
    "O": {16: "f16.gguf", 8: "q8_0.gguf", 4: "q4_0.gguf"},
    "H": {16: None},
}
SCRIPTS = {"L": "peer_llama_cpp.py", "O": "peer_openvino.py", "H": "peer_transformers.py"}
MODULES = {"L": "llama_cpp", "O": "openvino_genai", "H": "transformers"}
NAMES = {"L": "llama.cpp", "O": "OpenVINO GenAI", "H": "transformers"}


def installed(python: str, letter: str) -> bool:
    """Whether the peer's package can be found; does not import it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({MODULES[letter]!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


class Skein:
    letter, name, pid, prefill_rate = "S", "Skein", None, None

    def __init__(self, binary: str, model: str, threads: int, flags: list[str]):
        self.command = [binary, "bench", "latency", model, "--device", "cpu", "--threads", str(threads), "--json",
                        "--num-iters-warmup", "1", "--num-iters", "1", *flags]
        self.trouble, self.rates = None, None  # bytes and operations a second, in the latest run
        self.description = {"name": "Skein", "settings": " ".join(self.command[4:])}

    def measure(self, question: dict) -> float | None:
        tokens = question["batch"] * question["input"]
        shape = ["--batch-size", question["batch"], "--input-len", question["input"],
                 "--output-len", question["output"], "--max-num-seqs", max(question["batch"], 1),
                 # The whole batch in one step, as the peers prefill it, so that decode steps have the whole
                 # batch.
                 "--max-num-batched-tokens", max(tokens, 512)]
        ran = subprocess.run([*self.command, *map(str, shape)], check=False, capture_output=True, text=True,
                             timeout=ANSWER_LIMIT_S)
        if ran.returncode != 0:
            self.trouble = ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else f"exit {ran.returncode}"
            return None
        report = json.loads(ran.stdout)
        self.rates = report["read_bytes_per_second"], report["flops_per_second"]
        self.prefill_rate = report["results"][0]["prefill_tokens_per_second"]
        kind = "prefill" if question["measure"] == "prefill" else "decode"
        # No figure if no step had the whole batch, because the first sequence ended before the last one
        # began.
        return report["results"][0][f"{kind}_tokens_per_second"] or None

    def close(self) -> None:
        """Does nothing: each measurement ends its own process."""


class Peer:
    def __init__(self, letter: str, python: str, path: str, sequences: int, context: int, threads: int,
                 vocab_size: int):
        self.letter, self.name, self.trouble, self.description = letter, NAMES[letter], None, {}
        self.prefill_rate = None
        # Set before the libraries load, because they start their threads then.
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        command = [python, os.path.join(HERE, SCRIPTS[letter]), path, *map(str, (threads, sequences, context))]
        self.log = open(f"/tmp/skein-peer-{os.getpid()}-{letter}.log", "w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True, env={**os.environ, **limits, "PEER_VOCAB_SIZE": str(vocab_size)})
        self.pid = self.process.pid
        self.description = self.answer() or {}

    def answer(self) -> dict | None:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.log.seek(0)
        last = [line for line in self.log.read().splitlines() if line.strip()][-1:]
        self.trouble = f"ended: {last[0] if last else 'without a word'}"
        return None

    def measure(self, question: dict) -> float | None:
        if self.trouble:
            return None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        self.prefill_rate = answer and answer.get("prefill_tokens_per_second", answer["tokens_per_second"])
        return answer and answer["tokens_per_second"]

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        os.unlink(self.log.name)
