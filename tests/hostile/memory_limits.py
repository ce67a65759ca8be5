#!/usr/bin/env python3
"""usage: memory_limits.py SKEIN

Runs the server in real control groups of this machine (version 1 or 2, nested). The server must refuse a
limit that is too small, with numbers and before it loads anything. Within a sufficient limit it must answer
and never be killed, and after the first 200 of /readyz it must answer every request. Needs root and a
writable memory controller.
"""

import pathlib
import subprocess
import sys
import time

from server import START_TIMEOUT_S, Server, skip

MIB = 1 << 20
SMALL, ENOUGH = 48 * MIB, 1024 * MIB
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
ROOT = pathlib.Path("/sys/fs/cgroup")


class Group:
    """Two nested groups; the outer one has the limit."""

    def __init__(self, limit: int):
        version_1 = (ROOT / "memory").is_dir()
        self.outer = (ROOT / "memory" if version_1 else ROOT) / f"skein-hostile-{time.monotonic_ns()}"
        self.inner = self.outer / "inner"
        try:
            self.outer.mkdir()
            if not version_1:
                (self.outer / "cgroup.subtree_control").write_text("+memory")
            (self.outer / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(limit))
            self.inner.mkdir()
        except OSError as error:
            skip(f"no writable memory controller on this machine: {error}")
        self.prefix = ["sh", "-c", ENTER, str(self.inner)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for directory in (self.inner, self.outer):
            for _ in range(100):
                try:
                    directory.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)  # its last process is still ending


def refused(skein, limit, *flags) -> bool:
    with Group(limit) as group:
        command = [*group.prefix, skein, "serve", "--port", "0", "--workers", "1", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    print(f"{limit // MIB} MiB {' '.join(flags)}: exit code {done.returncode}: {said}", flush=True)
    return done.returncode not in (0, -9, 137) and "MiB" in said


def serves(skein, limit) -> bool:
    with Group(limit) as group, Server(skein, "--workers", "1", prefix=group.prefix, wait=False) as server:
        while not server.ready():
            if server.process.poll() is not None or time.monotonic() - server.started > START_TIMEOUT_S:
                print(f"{limit // MIB} MiB: it did not start: {server.told()[-500:]}")
                return False
            time.sleep(0.005)
        body = {"prompt": ["def f():"] * 8, "max_tokens": 50, "n": 8, "ignore_eos": True}
        answers = [server.call("POST", "/v1/completions", body)[0] for _ in range(4)]
        family = [server.process.pid, *server.children()]
        memory = sum(server.memory_mib(pid=pid) for pid in family)
        lost = "worker ended" in server.told()
    print(f"{limit // MIB} MiB: ready, answers {answers}, {memory:.0f} MiB resident, workers lost: {lost}", flush=True)
    return set(answers) == {200} and not lost


def main(skein):
    passed = refused(skein, SMALL)
    passed &= refused(skein, ENOUGH, "--kv-cache-memory-bytes", "500TiB")
    passed &= serves(skein, ENOUGH)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
