#!/usr/bin/env python3
"""usage: small_share.py SKEIN [PROMPTS]

One client requests PROMPTS prompts of 16 samples of 1,000 tokens in one call. Another client's request of
eight tokens must not wait for it.
"""

import sys
import time

from server import Server

PROMPTS = 128
SMALL = {"prompt": "import ", "max_tokens": 8, "ignore_eos": True}
ROUNDS = 8
# The small call gets at least an eighth of the seats, so it takes only a few times as long as alone.
MOST_S = 20.0


def timed(server):
    start = time.monotonic()
    status, _ = server.call("POST", "/v1/completions", SMALL, timeout=300)
    return status, time.monotonic() - start


def main(skein, prompts=PROMPTS):
    with Server(skein, "--workers", "1") as server:
        timed(server)
        alone = sorted(timed(server)[1] for _ in range(ROUNDS))
        big = {"prompt": [f"def f{at}():" for at in range(int(prompts))], "n": 16, "max_tokens": 1000}
        stream = server.open("/v1/completions", big | {"ignore_eos": True, "stream": True})
        assert stream.recv(1), "the big call has begun"
        time.sleep(1.0)
        beside = [timed(server) for _ in range(ROUNDS)]
        stream.close()
    right = sum(status == 200 for status, _ in beside)
    times = sorted(took for _, took in beside)
    print(
        f"8 tokens alone: median {1000 * alone[ROUNDS // 2]:.0f} ms; beside {int(prompts)} x 16 x 1,000 tokens: {right} of "
        f"{ROUNDS} answered, median {1000 * times[ROUNDS // 2]:.0f} ms, slowest {1000 * times[-1]:.0f} ms"
    )
    return int(right < ROUNDS or times[-1] > MOST_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
