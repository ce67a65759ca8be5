"""Measures what TLS costs a router, in turn with the same router without it, on one processor.

Usage: python3 benches/load/tls.py path/to/skein [--rounds N]
Needs wrk (Debian: apt-get install wrk), openssl and two processors: the routers have one, the workers and the
client have the other. Workers compute nothing. Prints medians, and the ratio of each round's pair.

    https    clients with TLS and kept connections, workers without: at least 0.75 of plain
    cluster  clients without TLS, mutual TLS between router and workers: at least 0.95 of plain
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from router import LONG_CONTEXTS, cluster, cpu_seconds, wrk  # noqa: E402

ROW = "ids"
GOALS = {"https": 0.75, "cluster": 0.95}


def certificates(folder: str) -> dict[str, str]:
    """A CA, and a certificate of a node, for servers and clients: ECDSA P-256."""
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=bench CA")
    openssl("req", *key, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    pathlib.Path(folder, "node.ext").write_text(
        "subjectAltName=DNS:skein-cluster,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    openssl("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "node.ext", "-out", "node.pem")
    return {name: os.path.join(folder, name) for name in ("ca.pem", "node.pem", "node.key")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    binary = os.path.abspath(options.binary)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        files = certificates(folder)
        node = ["--cluster-ca", files["ca.pem"], "--cluster-cert", files["node.pem"], "--cluster-key", files["node.key"]]
        shown = ["--tls-cert", files["node.pem"], "--tls-key", files["node.key"]]
        ways = {
            "plain": running.enter_context(cluster(binary)),
            "https": running.enter_context(cluster(binary, flags=shown, scheme="https")),
            "cluster": running.enter_context(cluster(binary, flags=node, of_workers=(*LONG_CONTEXTS, *node))),
        }
        rates, costs = {way: [] for way in ways}, {way: [] for way in ways}
        for seed in range(1 + options.rounds):
            for way, (router, url, _) in ways.items():
                before = cpu_seconds(router.pid)
                rate, count = wrk(url, ROW, seed)
                if seed:  # the first round warms up
                    rates[way].append(rate)
                    costs[way].append((cpu_seconds(router.pid) - before) / count)
        for way in ways:
            said = f"{way}: {statistics.median(rates[way]):.0f}/s ({min(rates[way]):.0f} to {max(rates[way]):.0f}), "
            said += f"{statistics.median(costs[way]) * 1e3:.3f} CPU s per 1,000"
            if goal := GOALS.get(way):
                ratios = [own / plain for own, plain in zip(rates[way], rates["plain"])]
                cpu = [plain / own for own, plain in zip(costs[way], costs["plain"])]
                said += f"; of plain {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
                said += f", by CPU time {statistics.median(cpu):.3f}, goal {goal}"
            print(said, flush=True)


if __name__ == "__main__":
    main()
