#!/usr/bin/env python3
"""usage: tenants.py SKEIN

Uses two API keys. The second uses request ids of the first one's running requests, tries to resume its
streams, and tries to find out by timing whether a prompt was sent before. Neither key may learn from or
disturb the other.
"""

import json
import sys

from server import Server

MINE, OTHER = "sk-mine", "sk-other"
ROUNDS = 20
SECRET = "The launch code of the moon base is 4711, and the spare key lies under the mat. " * 3
LONG = {"prompt": "def f():", "max_tokens": 400, "stream": True, "ignore_eos": True, "temperature": 1}
SMALL = {"prompt": "import ", "max_tokens": 4, "temperature": 0}


def main(skein):
    faults = []

    def check(ok, what):
        if not ok:
            faults.append(what)

    with Server(skein, "--workers", "2", "--api-key", MINE, "--api-key", OTHER) as server:
        ask = lambda key, body, **more: server.call("POST", "/v1/completions", body, key=key, **more)
        for at in range(ROUNDS):
            # The second key may use an id that a request of the first key is using.
            running = server.open("/v1/completions", LONG | {"request_id": f"order-{at}", "seed": at}, key=MINE)
            first = running.recv(1)
            status, answer = ask(OTHER, SMALL | {"request_id": f"order-{at}"})
            check(first and status == 200, f"round {at}: the other key's request got {status}: {answer[:200]}")
            # The same request of the first key attaches to its stream.
            twin = LONG | {"request_id": f"order-{at}", "seed": at, "max_tokens": 2, "stream": False}
            status, answer = ask(OTHER, twin)
            check(status == 200, f"round {at}: the same body got {status}: {answer[:200]}")
            # The second key tries to resume it.
            status, _ = ask(OTHER, LONG | {"request_id": f"order-{at}", "seed": at, "max_tokens": 8},
                            headers={"last-event-id": f"order-{at}/0"})  # fmt: skip
            check(status != 500, f"round {at}: resuming got {status}")
            running.close()
        cached = {}
        for key, prompt in [(MINE, SECRET), (MINE, SECRET), (OTHER, SECRET), (OTHER, SECRET)]:
            status, answer = ask(key, {"prompt": prompt, "max_tokens": 1})
            usage = json.loads(answer)["usage"]
            cached.setdefault(key, []).append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
        check(cached[MINE][1] > 0, f"the same key finds its own prompt: {cached}")
        check(cached[OTHER][0] == 0, f"cached_tokens tells that somebody else has sent it: {cached}")
        status, _ = server.call("POST", "/v1/completions", SMALL, key="sk-guess")
        check(status == 401, f"an unknown key got {status}")
    print(f"{ROUNDS} rounds with the other key's ids, cached tokens {cached}: {len(faults)} faults")
    for fault in faults:
        print(" ", fault)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
