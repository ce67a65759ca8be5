"""Measures throughput with many adapters beside that of the model alone, in turn on one server.

Usage: python3 benches/load/adapters.py path/to/skein MODEL [--adapters N] [--rank R] [--targets T]
Writes N adapters (default 200 of rank 16 for the attention's matrices; --targets all adds the feed-forward
network) to a temporary directory and serves MODEL with them by one worker. Each round sends the same number
of requests twice with 32 streams at a time: to the model alone, and to adapters drawn by Zipf's law
(exponent 1). Which goes first changes from round to round. Prints output tokens a second, and the median of
the rounds' ratios; exits 1 if it is below 0.8.
"""

import argparse
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))
import streams  # noqa: E402
from server import serve  # noqa: E402

TARGET = 0.8
STREAMS = 32
OUTPUT_TOKENS = 64


def run(url: str, models: list[str], first_seed: int) -> float:
    """Output tokens a second of one request to each of `models`."""
    return streams.run(url, STREAMS, len(models), OUTPUT_TOKENS, first_seed, models)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--adapters", type=int, default=200)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", default="attention", choices=["attention", "all"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--max-loras", type=int, default=64)
    parser.add_argument("--directory", help="adapters a0, a1 and so on, made before")
    parser.add_argument("--flags", default="", help="more flags of skein serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = args.directory or made
        if not args.directory:
            skein_dev = pathlib.Path(args.binary).with_name("skein-dev")
            make = [skein_dev, "make-adapters", args.model, "--out", directory]
            make += ["--count", str(args.adapters), "--rank", str(args.rank), "--targets", args.targets]
            subprocess.run(make, check=True)
        names = [f"a{nth}" for nth in range(args.adapters)]
        flags = ["--workers", "1", "--device", "cpu", "--enable-lora", "--max-lora-rank", str(args.rank)]
        flags += ["--max-loras", str(args.max_loras), "--served-model-name", "model", *args.flags.split()]
        flags += [f"--lora-modules={name}={directory}/{name}" for name in names]
        weights = [1 / (nth + 1) for nth in range(args.adapters)]
        draw = random.Random(1)
        ratios = []
        with serve(args.binary, args.model, flags) as (_, url):
            run(url, ["model"] * STREAMS, 1 << 40)
            for round_ in range(args.rounds):
                of_adapters = draw.choices(names, weights, k=args.requests)
                runs = {"model": ["model"] * args.requests, "adapters": of_adapters}
                order = list(runs) if round_ % 2 == 0 else list(runs)[::-1]
                rates = {
                    kind: run(url, runs[kind], (2 * round_ + at) * args.requests) for at, kind in enumerate(order)
                }
                ratios.append(rates["adapters"] / rates["model"])
                distinct = len(set(of_adapters))
                print(
                    f"round {round_ + 1}: {rates['model']:.1f} tokens/s alone, {rates['adapters']:.1f} with "
                    f"{distinct} adapters, ratio {ratios[-1]:.3f}",
                    flush=True,
                )
    median = statistics.median(ratios)
    print(f"median ratio {median:.3f}, rounds {min(ratios):.3f} to {max(ratios):.3f}")
    sys.exit(median < TARGET)


if __name__ == "__main__":
    main()
