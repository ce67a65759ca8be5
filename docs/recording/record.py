#!/usr/bin/env python3
"""Records what clients see while workers get SIGKILL: real processes, real streams, each answer checked.

    python3 docs/recording/record.py target/release/skein MODEL.gguf > docs/recording/kill.jsonl
    python3 docs/recording/render.py docs/recording/kill.jsonl > docs/src/images/kill.svg

MODEL is that of tests/real/run. Starts `skein serve` with three workers, opens 64 streams, and kills the
busiest worker, twice. Then every request runs again, undisturbed, and its answer must be the same, byte by
byte. Writes JSON lines: a header, then `[seconds, kind, value]` for the counters, the kills, and the text of
one stream, the one that moved most often. Standard library only.
"""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

STREAMS, WORKERS, KILLS, MAX_TOKENS = 64, 3, 2, 200
NAME, PROMPT = "SmolLM2-135M-Instruct", "The old lighthouse keeper opened the door and"
COUNTERS_EVERY = 0.1


class Recording:
    """Events with their times; thread-safe."""

    def __init__(self):
        self.begin, self.events, self.lock = time.monotonic(), [], threading.Lock()

    def add(self, kind, value):
        with self.lock:
            self.events.append([round(time.monotonic() - self.begin, 3), kind, value])


class Counters:
    """Progress of all streams; `moves` is known only for ended streams."""

    def __init__(self):
        self.lock, self.tokens, self.done, self.failed, self.moves = threading.Lock(), 0, 0, 0, {}

    def change(self, **by):
        with self.lock:
            for name, count in by.items():
                setattr(self, name, getattr(self, name) + count)

    def snapshot(self):
        with self.lock:
            moved = sum(moves > 0 for moves in self.moves.values())
            return {"tokens": self.tokens, "done": self.done, "failed": self.failed, "moved": moved}


def body(seed):
    return {
        "model": NAME, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0.7,
        "frequency_penalty": 0.3, "seed": seed, "ignore_eos": True, "stream": True, "return_token_ids": True,
    }


def stream(address, seed, on_event):
    """One request, event by event; returns its text."""
    url, data = f"http://{address}/v1/completions", json.dumps(body(seed)).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    text, ended = "", False
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            data = line.decode().removeprefix("data: ").strip()
            if data == "[DONE]":
                ended = True
            elif line.startswith(b"data: "):
                event = json.loads(data)
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                text += event["choices"][0]["text"]
                on_event(event)
    if not ended:
        raise RuntimeError("the stream broke off")
    return text


def watched(address, seed, recording, counters):
    """Runs one stream, and records and counts its events."""
    def on_event(event):
        recording.add("text", (seed, event["choices"][0]["text"]))
        counters.change(tokens=len(event["choices"][0]["token_ids"]))
        if "skein" in event:
            counters.moves[seed] = event["skein"]["moves"]
    try:
        text = stream(address, seed, on_event)
        counters.change(done=1)
        return text
    except (OSError, RuntimeError) as error:
        counters.change(failed=1)
        return f"failed: {error}"


def workers_of(pid):
    """Workers of the supervisor, started by any of its threads, and the processor time of each."""
    used = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in open(f"/proc/{pid}/task/{task}/children", encoding="ascii").read().split():
            fields = open(f"/proc/{child}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
            used[int(child)] = int(fields[11]) + int(fields[12])
    return used


def kill_one(pid, killed, recording):
    """Kills the worker with the most processor time that was not killed before."""
    used = workers_of(pid)
    victim = max(used, key=used.get)
    recording.add("kill", victim)
    os.kill(victim, signal.SIGKILL)
    killed.add(victim)


def start(binary, model):
    """Starts a cluster on a free port; returns its process and address once it serves."""
    command = [binary, "serve", model, "--served-model-name", NAME, "--port", "0", "--workers", str(WORKERS), "--threads", "1"]
    command += ["--max-model-len", "1024", "--log-format", "json"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    connected, address = 0, None
    for line in server.stderr:
        entry = json.loads(line) if line.startswith("{") else {}
        connected += entry.get("message") == "worker connected"
        if entry.get("message") == "ready" and "url" in entry:
            address = entry["url"].removeprefix("http://").removesuffix("/v1")
        if address and connected == WORKERS:
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, address
    raise SystemExit("the server ended before it was ready")


def main(binary, model):
    server, address = start(binary, model)
    try:
        recording, counters, killed = Recording(), Counters(), set()
        seeds = range(1, STREAMS + 1)
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            running = [pool.submit(watched, address, seed, recording, counters) for seed in seeds]
            at = [STREAMS * MAX_TOKENS * (kill + 1) / (KILLS + 1.5) for kill in range(KILLS)]
            while not all(one.done() for one in running):
                now = counters.snapshot()
                recording.add("count", now)
                if at and now["tokens"] >= at[0]:
                    at.pop(0)
                    kill_one(server.pid, killed, recording)
                time.sleep(COUNTERS_EVERY)
            recording.add("count", counters.snapshot())
        seen = [one.result() for one in running]
        alone = [stream(address, seed, lambda event: None) for seed in seeds]
        altered = sum(one != other for one, other in zip(seen, alone))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    last = counters.snapshot()
    shown = max(seeds, key=lambda seed: (counters.moves.get(seed, 0), -seed))
    header = {
        "streams": STREAMS, "workers": WORKERS, "kills": len(killed), **last, "altered": altered,
        "expected_tokens": STREAMS * MAX_TOKENS, "model": NAME, "prompt": PROMPT, "shown_moves": counters.moves.get(shown, 0),
    }
    print(json.dumps(header))
    for seconds, kind, value in sorted(recording.events, key=lambda event: event[0]):
        if kind != "text":
            print(json.dumps([seconds, kind, value]))
        elif value[0] == shown:
            print(json.dumps([seconds, kind, value[1]]))
    print(header, file=sys.stderr)
    if altered or last["failed"] or last["tokens"] != header["expected_tokens"]:
        raise SystemExit("not every answer is that of an undisturbed run")


if __name__ == "__main__":
    main(*sys.argv[1:])
