"""Measures what dividing a model among ranks costs, in turn on one machine.

Usage: python3 benches/load/groups.py path/to/skein MODEL [--threads T] [--rounds R]
Each round serves MODEL in four ways with T threads in all (default 2), and sends each the same streams:

    one        one process
    tensor     two ranks, each with half of every layer
    pipeline   two ranks, each with half of the layers
    two        two workers, each with the whole model

Prints output tokens a second, and medians of the rounds' ratios: tensor to one, which is what exchanges cost,
and pipeline to two, which is the share of the time that stages are busy: two workers with half the threads
and half the streams each compute what two stages compute that never wait. Exits 1 if a ratio is below 0.90;
a pipeline needs four streams for that.
"""

import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
import streams  # noqa: E402
from server import serve  # noqa: E402

TARGET = 0.9
STREAMS = [1, 4, 8, 32]
LEAST_PIPELINED = 4
# Output tokens of a stream: long answers of few streams, so that each run takes seconds.
OUTPUT_TOKENS = {1: 96, 4: 64, 8: 64, 32: 32}
RATIOS = [("tensor", "one", 1), ("pipeline", "two", LEAST_PIPELINED)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", default="", help="more flags of skein serve")
    args = parser.parse_args()
    every = ["--device", "cpu", "--speculate", "off", *args.flags.split()]
    whole, half = ["--threads", str(args.threads)], ["--threads", str(args.threads // 2)]
    ways = {
        "one": ["--workers", "1", *whole],
        "tensor": ["--workers", "1", "--tensor-parallel-size", "2", *whole],
        "pipeline": ["--workers", "1", "--pipeline-parallel-size", "2", *whole],
        "two": ["--workers", "2", *half],
    }
    ratios = {(name, count): [] for name, _, least in RATIOS for count in STREAMS if count >= least}
    for round_ in range(args.rounds):
        rates = {}
        # Another order each round, because the machine's speed changes over minutes.
        names = list(ways)[round_ % 4 :] + list(ways)[: round_ % 4]
        for name in names:
            with serve(args.binary, args.model, [*ways[name], *every]) as (_, url):
                streams.run(url, 4, 4, 8, seed=1 << 40)  # warm-up
                for at, count in enumerate(STREAMS):
                    seed = (round_ * len(STREAMS) + at) * 1000
                    rates[name, count] = streams.run(url, count, count, OUTPUT_TOKENS[count], seed)
        for name in ways:
            print(f"round {round_ + 1}: {name:8}", *(f"{rates[name, count]:8.1f}" for count in STREAMS), flush=True)
        for name, of, _ in RATIOS:
            for count in STREAMS:
                if (name, count) in ratios:
                    ratios[name, count].append(rates[name, count] / rates[of, count])
    missed = False
    for name, of, _ in RATIOS:
        for count in STREAMS:
            if found := ratios.get((name, count)):
                median = statistics.median(found)
                missed |= median < TARGET
                print(f"{name} / {of}, {count} streams: {median:.3f} ({min(found):.3f} to {max(found):.3f})")
    sys.exit(missed)


if __name__ == "__main__":
    main()
