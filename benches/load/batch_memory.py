"""Measures the memory of a long batch: `skein run-batch` with a fake device, or consecutive jobs of a server.

Usage: python3 benches/load/batch_memory.py path/to/skein [--lines N] [--through-server]
Writes N requests (default 1,000,000) and answers them. Reads the resident memory of every process once a
second, and prints it by the lines done. Fails if a process has grown by more than GROWTH between the first
fifth of the lines and the last; before that, buffers and tables fill up to their bounds. With
--through-server the lines go in files of 50,000, OpenAI's limit, through /v1/files and /v1/batches.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
from batches import call, create, line  # noqa: E402
from server import family, serve  # noqa: E402

GROWTH_MIB = 8.0
PER_FILE = 50_000
# Other processes, such as those that render chats, are short-lived.
PROCESSES = ("run-batch", "serve", "worker")
FAKE = ["--device", "fake", "--workers", "1"]


def line_of(number: int) -> str:
    return line(number, {"model": "skein-7m", "prompt": f"Line {number} of a long batch", "max_tokens": 2})


def write(path: pathlib.Path, numbers: range) -> None:
    with path.open("w") as file:
        file.writelines(map(line_of, numbers))


def lines_of(path: pathlib.Path, seen: list) -> int:
    """Lines of a growing file; `seen` holds the offset and the count of the previous call."""
    if path.exists():
        with path.open("rb") as file:
            file.seek(seen[0])
            while part := file.read(1 << 20):
                seen[0] += len(part)
                seen[1] += part.count(b"\n")
    return seen[1]


class Memory:
    """Resident memory of a process and its children, by lines done."""

    def __init__(self, pid: int, done, total: int) -> None:
        self.pid, self.done, self.total, self.samples = pid, done, total, []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self) -> None:
        while not self.ended.wait(1):
            self.samples.append((self.done(), {name: mib for name, mib in resident(self.pid)}))

    def report(self) -> bool:
        self.ended.set()
        self.thread.join()
        names = sorted({name for _, memory in self.samples for name in memory})
        print(f"{'lines':>10}" + "".join(f"{name:>14}" for name in names) + "   MiB resident")
        shown = 0
        for done, memory in self.samples:
            if done >= shown:
                print(f"{done:>10}" + "".join(f"{memory.get(name, 0):>14.1f}" for name in names))
                shown = done + self.total // 20
        return all([self.flat(name) for name in names])

    def flat(self, name: str) -> bool:
        share = lambda least, most: [memory[name] for done, memory in self.samples
                                     if name in memory and least <= done / self.total <= most]
        early, late = share(0.1, 0.2), share(0.9, 1.0)
        if not early or not late:
            print(f"{name}: too few samples; take more lines")
            return False
        grown = max(late) - max(early)
        print(f"{name}: {max(early):.1f} MiB in the first fifth, {max(late):.1f} in the last: "
              f"{'flat' if grown <= GROWTH_MIB else 'GROWS'}")
        return grown <= GROWTH_MIB


def resident(pid: int):
    """Name and MiB of `pid` and its children."""
    try:
        for member in family(pid):
            command = pathlib.Path(f"/proc/{member}/cmdline").read_bytes().split(b"\0")
            status = pathlib.Path(f"/proc/{member}/status").read_text()
            kib = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS:"))
            if (name := command[1].decode()) in PROCESSES:
                yield name, kib / 1024
    except (OSError, StopIteration, IndexError):
        return  # one has just ended


def alone(binary: str, lines: int, directory: pathlib.Path) -> bool:
    given, answers, seen = directory / "in.jsonl", directory / "out.jsonl", [0, 0]
    write(given, range(lines))
    start = time.monotonic()
    run = subprocess.Popen([binary, "run-batch", *FAKE, "-i", given, "-o", answers], stdin=subprocess.DEVNULL)
    memory = Memory(run.pid, lambda: lines_of(answers, seen), lines)
    code = run.wait()
    took = time.monotonic() - start
    flat = memory.report()
    done = lines_of(answers, seen)
    print(f"{done} lines in {took:.0f} s, {done / took:.0f} a second, exit code {code}")
    return flat and code == 0 and done == lines


def through_server(binary: str, lines: int, directory: pathlib.Path) -> bool:
    done = 0
    with serve(binary, None, [*FAKE, "--batch-dir", str(directory / "batches")]) as (server, url):
        start = time.monotonic()
        memory = Memory(server.pid, lambda: done, lines)
        for first in range(0, lines, PER_FILE):
            numbers = range(first, min(first + PER_FILE, lines))
            batch = create(url, "".join(map(line_of, numbers)).encode())
            while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
                time.sleep(0.2)
                batch = call(f"{url}/v1/batches/{batch['id']}")
                done = first + batch["request_counts"]["completed"]
            assert batch["status"] == "completed" and batch["request_counts"]["completed"] == len(numbers), batch
        took = time.monotonic() - start
        flat = memory.report()
    print(f"{done} lines in {took:.0f} s, {done / took:.0f} a second")
    return flat


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--through-server", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = through_server if given.through_server else alone
        return int(not run(given.binary, given.lines, pathlib.Path(directory)))


if __name__ == "__main__":
    sys.exit(main())
