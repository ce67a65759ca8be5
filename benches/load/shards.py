"""Measures what a second thread costs a router: processor time of a request, in turn and in one run.

Usage: python3 benches/load/shards.py NAME=path/to/skein:shardsN NAME=path/to/skein:threadsN ...
           [--workers-by path/to/skein] [--rows ROW...] [--rounds N]
Needs what router.py needs. `shardsN` starts the router with --connection-threads N; `threadsN` is for builds
before that flag, whose runtime has N threads. Every router has eight fake workers of its own.

Routers, workers and clients share two processors, so their rates say little: what counts is the processor
time of the whole router a request. If two threads spend at most 1.11 times that of one, they have at least
1.8 times its rate on processors of their own. The router has the lowest priority, so that it is what the
others wait for: a thread that often sleeps and wakes costs more than one that always has work. Ratios are
those of a round's neighbours; the machine may be busy otherwise.
"""

import argparse
import contextlib
import os
import pathlib
import resource
import statistics

import router

MODEL = str(pathlib.Path(__file__).resolve().parents[2] / "models" / "skein-7m")
LOWER_PRIORITY = 9


def threads(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def cpu_us(pid: int) -> float:
    """Processor time of all threads that live, in microseconds."""
    read = [pathlib.Path(f"/proc/{pid}/task/{thread}/schedstat").read_text() for thread in threads(pid)]
    return sum(int(text.split()[0]) for text in read) / 1e3


def start(stack: contextlib.ExitStack, binary: str, kind: str, workers_by: str | None):
    flags = ("--model", MODEL)
    if kind.startswith("shards"):
        flags += ("--connection-threads", kind.removeprefix("shards"))
    else:
        os.environ["TOKIO_WORKER_THREADS"] = kind.removeprefix("threads")
    process, url, _ = stack.enter_context(router.cluster(binary, flags=flags, workers_by=workers_by))
    os.environ.pop("TOKIO_WORKER_THREADS", None)
    for thread in threads(process.pid):
        os.sched_setaffinity(thread, {0, 1})
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0) + LOWER_PRIORITY)
    return process, url


def compare(row: str, routers: dict, rounds: int) -> None:
    costs, rates = {name: [] for name in routers}, {name: [] for name in routers}
    for nth in range(rounds):
        in_turn = list(routers.items())
        for name, (process, url) in in_turn if nth % 2 else reversed(in_turn):
            before = cpu_us(process.pid)
            rate, count = router.wrk(url, row, 1 + nth)
            costs[name].append((cpu_us(process.pid) - before) / count)
            rates[name].append(rate)
    for name in routers:
        shown = []
        for other in routers:
            ratios = sorted(mine / base for mine, base in zip(costs[name], costs[other]))
            low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
            shown.append(f"{statistics.median(ratios):.2f} of {other} ({low:.2f} to {high:.2f})" if other != name else "")
        print(f"{row:8} {name:8} {statistics.median(costs[name]):6.1f} us a request, {', '.join(filter(None, shown))}; "
              f"{statistics.median(rates[name]):.0f}/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestants", nargs="+", metavar="NAME=BINARY:KIND")
    parser.add_argument("--workers-by")
    parser.add_argument("--rows", nargs="+", choices=router.BODIES, default=["ids", "streams"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--connections", type=int, default=128)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    router.SECONDS, router.CONNECTIONS = args.seconds, args.connections
    with contextlib.ExitStack() as stack:
        routers = {}
        for contestant in args.contestants:
            name, _, rest = contestant.partition("=")
            binary, _, kind = rest.rpartition(":")
            routers[name] = start(stack, binary, kind, args.workers_by)
        os.sched_setaffinity(0, {0, 1})  # the clients'
        for row in args.rows:
            compare(row, routers, args.rounds)


if __name__ == "__main__":
    main()
