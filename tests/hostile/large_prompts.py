#!/usr/bin/env python3
"""usage: large_prompts.py SKEIN [KIND]...

Sends prompts of 8 MB to a model with a context of 1,024 tokens, one and then sixteen at once, as text, as a
chat, as token ids and to /tokenize. Each must be refused or answered, and the router's resident memory must
return to at most 1.5 times its initial value.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from server import Server

BYTES = 8 * 1024 * 1024 - 4096
AT_ONCE = 16
MOST_RATIO = 1.5
SETTLE_S = 5.0
# A router that tokenises the whole prompt takes minutes.
TIMEOUT_S = 600.0

TEXT = ("The quick brown fox jumps over the lazy dog. " * (BYTES // 45 + 1))[:BYTES]
BODIES = {
    "text": ("/v1/completions", {"prompt": TEXT}),
    "spaces": ("/v1/completions", {"prompt": " " * BYTES}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
    "token ids": ("/v1/completions", {"prompt": [7] * (BYTES // 3)}),
    "tokenize": ("/tokenize", {"prompt": TEXT}),
}


def main() -> int:
    failed = False
    print(f"{'prompts':<16}{'before MiB':>12}{'peak MiB':>10}{'after MiB':>11}{'ratio':>7}{'seconds':>9}  answers")
    for name in sys.argv[2:] or BODIES:
        path, body = BODIES[name]
        for at_once in (1, AT_ONCE):
            with Server(sys.argv[1], "--workers", "1") as server, ThreadPoolExecutor(at_once) as clients:
                server.call("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 4})
                before, start = server.memory_mib(), time.monotonic()
                calls = [clients.submit(server.call, "POST", path, body, TIMEOUT_S) for _ in range(at_once)]
                answers = sorted({call.result()[0] for call in calls})
                seconds = time.monotonic() - start
                time.sleep(SETTLE_S)
                after = server.memory_mib()
                failed |= after > MOST_RATIO * before
                peak = server.memory_mib("VmHWM")
                print(
                    f"{name + ' x' + str(at_once):<16}{before:>12.1f}{peak:>10.1f}{after:>11.1f}{after / before:>7.2f}"
                    f"{seconds:>9.2f}  {answers}",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
