"""Measures what a router keeps for an open stream. Clients that stop reading are the row `slow` of router.py.

Usage: python3 benches/load/open_streams.py path/to/skein [--before path/to/older/skein] [--streams N]
       [--workers-by path/to/skein] [--model DIR]
Needs two processors, as router.py does. The fake workers are those of `path/to/skein`, or of `--workers-by`.
A build that is only a router needs `--model`, the directory of the shipped model.

Opens N streams (5,000) of a token a second: memory of one, also 20 seconds later, and what remains after all
have ended. Rss and Pss count the pages that are resident; the socket buffers of the kernel are in neither.
"""

import argparse
import os
import resource
import time

import router

KINDS = ("Rss", "Pss", "Anonymous")
# Room for all streams at once: in blocks, in the engine and in its queue.
WORKERS = ("--fake-step-time", "1s", "--fake-kv-blocks", "1000000", "--max-num-seqs", "2048", "--max-num-queued-reqs", "2048")


def memory(pid: int) -> dict[str, int]:
    return {kind: router.memory(pid, kind) for kind in KINDS}


def shown(before: dict[str, int], now: dict[str, int], streams: int) -> str:
    return ", ".join(f"{kind} {(now[kind] - before[kind]) / streams / 1e3:.1f}" for kind in KINDS)


def measure(name: str, binary: str, args: argparse.Namespace) -> None:
    streams = args.streams
    flags = (*router.ROUTER_FOR_MANY, *(("--model", args.model) if args.model else ()))
    with router.cluster(binary, flags=flags, of_workers=WORKERS, workers_by=args.workers_by) as (process, url, _):
        before = memory(process.pid)
        readers = router.Readers(url, streams, 600, 65536, 0.05)
        time.sleep(30)
        held = memory(process.pid)
        time.sleep(20)
        later, alive = memory(process.pid), streams - readers.failed
        if alive < streams:
            raise SystemExit(f"{name}: only {alive} of {streams} streams were opened")
        readers.close()
        router.settled(process.pid)
        after = memory(process.pid)
        print(f"{name:7} {streams} streams, KB each: {shown(before, held, streams)}; 20 s later "
              f"{shown(before, later, streams)}; after their end {(after['Rss'] - before['Rss']) / 1e6:.1f} MB remain", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--before", help="an older build, measured first")
    parser.add_argument("--workers-by", help="the build of the workers")
    parser.add_argument("--model", help="the model's directory, for a build without one")
    parser.add_argument("--streams", type=int, default=5_000)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.sched_setaffinity(0, {1})
    for name, binary in (("before", args.before), ("new", args.binary)):
        if binary:
            measure(name, binary, args)


if __name__ == "__main__":
    main()
