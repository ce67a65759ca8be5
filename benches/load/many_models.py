"""Measures several models in one server: what those in use notice of others that are loaded and unloaded,
what is lost when workers are killed meanwhile, and how long a model that is not in memory takes to answer.

Usage: python3 benches/load/many_models.py path/to/skein MODEL [--requests N] [--rate R] [--kills K]
       python3 benches/load/many_models.py path/to/skein MODEL --cold [--rounds N] [--flags "…"]
MODEL is a directory or a GGUF file. It is served under six names, which is six models to the server; so every
answer can be compared with that of another run.

Without --cold: N requests (10,000) arrive at R a second (20), each for 8 tokens. Half name the first model, a
quarter the second, and so on. Three runs of the same requests:

    alone    all of them name the first model
    many     in the memory of two models
    killed   the same, and K times (200) a worker, chosen at random, is killed by SIGKILL

Prints the time to the first token from when a request should have been sent (median, 99th of a hundred) for
each model, loads, failures, and answers that differ from those of `alone`. Exits 1 if one failed or differs.

With --cold: two names in the memory of one model, asked in turn: the time to the first token of each request,
all of which wait for their model. Files are in the page cache.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from server import family, serve  # noqa: E402

NAMES = ["a", "b", "c", "d", "e", "f"]
PROMPTS, OUTPUT_TOKENS, LIMIT_S = 50, 8, 120
# Of each model, so that plans do not depend on the memory of all.
KV_BYTES = 64 << 20


def copies(folder: pathlib.Path, model: pathlib.Path, names: list[str]) -> None:
    for name in names:
        if model.is_dir():
            (folder / name).mkdir()
            for file in model.iterdir():
                (folder / name / file.name).symlink_to(file.resolve())
        else:
            (folder / f"{name}.gguf").symlink_to(model.resolve())


def planned_bytes(binary: str, folder: pathlib.Path, flags: list[str]) -> int:
    command = [binary, "serve", str(folder), "--plan", *flags]
    plan = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return max(int(bytes_) for bytes_ in re.findall(r"^\w+: (\d+) bytes$", plan, re.MULTILINE))


async def ask(port: int, model: str, prompt: int) -> tuple[float, str]:
    """When the first token was there, and the text."""
    body = json.dumps({"model": model, "prompt": f"def f{prompt}(self):", "max_tokens": OUTPUT_TOKENS, "ignore_eos": True,
                       "temperature": 0.8, "seed": prompt, "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(f"{head}\r\nconnection: close\r\n\r\n{body}".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise ValueError((status + await reader.read()).decode(errors="replace"))
        first, text, is_done = None, "", False
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                is_done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(event)
                first = first or time.monotonic()
                text += event["choices"][0]["text"] if event["choices"] else ""
        if first is None or not is_done:
            raise ValueError("the answer is cut")
        return first, text
    finally:
        writer.close()


class Run:
    """Requests of one run, each sent at its time whatever became of those before it."""

    def __init__(self, port: int, plan: list[tuple[float, str, int]]) -> None:
        self.port, self.plan = port, plan
        self.waits: dict[str, list[float]] = {}
        self.texts: dict[int, str] = {}
        self.failures: list[str] = []

    async def request(self, due: float, model: str, prompt: int) -> None:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        try:
            first, text = await asyncio.wait_for(ask(self.port, model, prompt), LIMIT_S)
        except (OSError, ValueError, TimeoutError) as error:
            self.failures.append(f"{model}: {error!r}")
            return
        self.waits.setdefault(model, []).append(first - due)
        if self.texts.setdefault(prompt, text) != text:
            self.failures.append(f"{model}: the answer to prompt {prompt} differs from one before")

    async def all(self) -> None:
        began = time.monotonic() + 0.5
        await asyncio.gather(*(self.request(began + at, model, prompt) for at, model, prompt in self.plan))


async def kill_workers(server: int, kills: int, seconds: float, killed: list[int]) -> None:
    rng = random.Random(7)
    while len(killed) < kills:
        await asyncio.sleep(rng.expovariate(kills / seconds))
        if workers := [pid for pid in family(server)[1:] if is_worker(pid)]:
            killed.append(rng.choice(workers))
            os.kill(killed[-1], signal.SIGKILL)


def is_worker(pid: int) -> bool:
    try:
        return b"worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def loads(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("skein_model_loads_total{"))


async def measured(run: Run, server: int, kills: int) -> int:
    """The number of workers killed: all but those that would have been killed after the last answer."""
    killed: list[int] = []
    killing = asyncio.create_task(kill_workers(server, kills, run.plan[-1][0], killed))
    await run.all()
    killing.cancel()
    return len(killed)


def several(args: argparse.Namespace, folder: pathlib.Path) -> bool:
    copies(folder, args.model, NAMES)
    flags = ["--kv-cache-memory-bytes", str(KV_BYTES), "--device", "cpu", *args.flags.split()]
    flags += ["--models-memory", str(2 * planned_bytes(args.binary, folder, flags))]
    rng, at, plan = random.Random(5), 0.0, []
    weights = [2.0 ** -number for number in range(1, len(NAMES) + 1)]
    for _ in range(args.requests):
        at += rng.expovariate(args.rate)
        plan.append((at, rng.choices(NAMES, weights)[0], rng.randrange(PROMPTS)))
    alone = [(at, NAMES[0], prompt) for at, _, prompt in plan]
    texts, is_right = None, True
    for name, of_run, kills in (("alone", alone, 0), ("many", plan, 0), ("killed", plan, args.kills)):
        with serve(args.binary, str(folder), flags) as (process, url):
            port = int(url.rsplit(":", 1)[1])
            asyncio.run(ask(port, NAMES[0], 0))
            run = Run(port, of_run)
            killed = asyncio.run(measured(run, process.pid, kills))
            texts = texts or run.texts
            differing = sum(texts.get(prompt) != text for prompt, text in run.texts.items())
            print(f"{name}: {len(of_run)} requests, {loads(port)} loads, {killed} kills, {len(run.failures)} failed, "
                  f"{differing} answers differ from alone", flush=True)
            for failure in run.failures[:5]:
                print(f"  {failure}")
            is_right &= not run.failures and not differing
            for model in NAMES:
                if waits := sorted(run.waits.get(model, [])):
                    p99 = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
                    print(f"  {model}: {len(waits):5} requests, first token {statistics.median(waits) * 1e3:.0f} ms, "
                          f"p99 {p99 * 1e3:.0f} ms, max {waits[-1] * 1e3:.0f} ms", flush=True)
    return is_right


def cold(args: argparse.Namespace, folder: pathlib.Path) -> bool:
    copies(folder, args.model, NAMES[:2])
    flags = ["--kv-cache-memory-bytes", str(KV_BYTES), "--device", "cpu", *args.flags.split()]
    flags += ["--models-memory", str(planned_bytes(args.binary, folder, flags))]
    waits = []
    with serve(args.binary, str(folder), flags) as (_, url):
        port = int(url.rsplit(":", 1)[1])
        for number in range(args.rounds + 1):
            began = time.monotonic()
            first, _ = asyncio.run(ask(port, NAMES[number % 2], 0))
            if number:  # the first one reads the files into the page cache
                waits.append(first - began)
            time.sleep(0.5)
    shown = ", ".join(f"{wait * 1e3:.0f}" for wait in waits)
    print(f"first token of a model that was not in memory: median {statistics.median(waits) * 1e3:.0f} ms ({shown})")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--flags", default="", help="more flags of skein serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        is_right = (cold if args.cold else several)(args, pathlib.Path(folder))
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
