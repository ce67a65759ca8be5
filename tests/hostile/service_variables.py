#!/usr/bin/env python3
"""usage: service_variables.py SKEIN

Starts the server with the variables that Kubernetes sets for a Service named `skein`. It must listen on the
port of its flag and log that it ignores the variables. It must still refuse a mistyped setting.
"""

import os
import subprocess
import sys

from server import Server

ADDRESS = "10.96.1.7"
VARIABLES = {
    "SKEIN_PORT": f"tcp://{ADDRESS}:8000",
    "SKEIN_SERVICE_HOST": ADDRESS,
    "SKEIN_SERVICE_PORT": "8000",
    "SKEIN_SERVICE_PORT_HTTP": "8000",
    "SKEIN_PORT_8000_TCP": f"tcp://{ADDRESS}:8000",
    "SKEIN_PORT_8000_TCP_PROTO": "tcp",
    "SKEIN_PORT_8000_TCP_PORT": "8000",
    "SKEIN_PORT_8000_TCP_ADDR": ADDRESS,
}


def main(skein):
    with Server(skein, "--workers", "1", env=dict(os.environ) | VARIABLES) as server:
        status, _ = server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        lines = [line for line in server.told().splitlines() if "SKEIN_PORT" in line]
    wrong = subprocess.run(
        [skein, "serve", "--port", "0"], env={"SKEIN_PROT": "8000"}, capture_output=True, text=True, timeout=60
    )
    print(f"{len(VARIABLES)} variables of a Service: started, answered {status}, {len(lines)} line about them")
    print(f"SKEIN_PROT: refused ({wrong.returncode}): {wrong.stderr.strip().splitlines()[-1][:100]}")
    return int(status != 200 or not lines or wrong.returncode != 2)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
