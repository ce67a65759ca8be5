#!/usr/bin/env python3
"""usage: templates.py SKEIN

Serves copies of the shipped model whose chat template works for every message but one. That one must be
refused with 400 and a reason, in bounded time and memory, while other chats are answered.
"""

import json
import pathlib
import sys
import tempfile
import threading
import time

from server import MODEL, Server

TRIGGER = "open sesame"
MOST_MIB, MOST_S = 256, 30.0
# Memory limit of a process that renders; its address space, stack included, is limited to 1 GiB.
MOST_CHILD_MIB = 1024
PLAIN = "{% for message in messages %}{{ message.content }}\n{% endfor %}"

BOMBS = {
    "a string doubled 60 times": "{% set ns = namespace(a='xy' * 50) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a|length }}",
    "the same with ~": "{% set ns = namespace(a='xy' * 50) %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a|length }}",
    "strings of 100 MB kept": "{% set ns = namespace(a=[]) %}{% for i in range(1000) %}{% set ns.a = ns.a + ['x' * 99000000] %}{% endfor %}",
    "a list doubled 60 times": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a|list|length }}",
    "a set block that grows": "{% set ns = namespace(a='x' * 1000) %}{% for i in range(60) %}{% set b %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = b %}{% endfor %}",
    "a captured loop": "{% set b %}{% for i in range(100000) %}{% for j in range(40) %}" + "y" * 5000 + "{% endfor %}{% endfor %}{% endset %}",
    "a join of ranges": "{{ range(100000)|map('string')|join(message.content * 1000) }}",
    "huge repetition": "{{ 'x' * 1000000000000 }}",
    "comparison of a value that doubles": "{% set ns = namespace(a=['x'], b=['x']) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "loops that take long": "{% for i in range(100000) %}{% for j in range(100000) %}{% if 'z' in message.content * 10000 %}{% endif %}{% endfor %}{% endfor %}",
    "sorting all day": "{% set a = range(100000)|list %}{% for i in range(100000) %}{% set b = a|sort(reverse=true)|sort %}{% endfor %}",
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "a namespace in itself, compared": "{% set ns = namespace() %}{% set ns.a = [ns] %}{% set m = namespace() %}{% set m.a = [m] %}{{ [ns, ns] == [m, m] }}{{ [ns]|tojson }}",
    "recursion": "{% macro f(x) %}{{ f(x + 'x') }}{% endmacro %}{{ f('x') }}",
}


def hostile(directory: pathlib.Path, bomb: str) -> pathlib.Path:
    for file in MODEL.iterdir():
        (directory / file.name).symlink_to(file)
    path = directory / "chat_template.jinja"
    path.unlink(missing_ok=True)
    path.write_text("{% for message in messages %}{% if message.content == '" + TRIGGER + "' %}" + bomb + "{% endif %}{% endfor %}" + PLAIN)
    return directory


def chat(server, text):
    start = time.monotonic()
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    status, answer = server.call("POST", "/v1/chat/completions", body)
    return status, answer, time.monotonic() - start


def watch(server, most, stop):
    """Records the highest memory of any child other than a worker."""
    while not stop.wait(0.02):
        workers = server.workers()
        most[0] = max([most[0], *(server.memory_mib(pid=pid) for pid in server.children() if pid not in workers)])


def attack(skein, name, bomb):
    with tempfile.TemporaryDirectory() as directory:
        with Server(skein, "--model", str(hostile(pathlib.Path(directory), bomb)), "--workers", "1") as server:
            chat(server, "hello")
            most, stop = [0.0], threading.Event()
            watching = threading.Thread(target=watch, args=(server, most, stop))
            watching.start()
            status, answer, seconds = chat(server, TRIGGER)
            others = [chat(server, "hello")[0] for _ in range(3)]
            stop.set()
            watching.join()
            peak = server.memory_mib("VmHWM")
    reason = json.loads(answer).get("error", {}).get("message", "")
    # A template that prints nothing may also be answered.
    right = status == 400 and bool(reason) or status == 200
    right &= set(others) == {200} and seconds < MOST_S and peak < MOST_MIB and most[0] < MOST_CHILD_MIB
    print(
        f"{name:<36}{status} in {seconds:5.2f} s, router's peak {peak:4.0f} MiB, its child's {most[0]:4.0f}, others {others}: "
        f"{reason[:90]}{'' if right else '  <- WRONG'}",
        flush=True,
    )
    return right


def main(skein, *names):
    wrong = [name for name, bomb in BOMBS.items() if (not names or name in names) and not attack(skein, name, bomb)]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
