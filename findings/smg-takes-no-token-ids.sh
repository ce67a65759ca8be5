#!/usr/bin/env bash
# Guess: a router for OpenAI servers passes a completion's prompt on in each form that the API has: a text,
# a list of texts, a list of token ids. Benchmarks and clients with a tokenizer of their own send ids.
# Seen: smg 1.13.0 takes texts and refuses ids with 400, "data did not match any variant of untagged enum
# StringOrArray"; the worker behind it never sees the request. A comparison of routers by prompts of ids must
# give it text.
# Run with smg before a scripted worker on this machine; a download, and half a minute.
set -euo pipefail
T=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$T"' EXIT
cat >"$T/check.py" <<'PY'
import http.server
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

seen = []


class Worker(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "m", "object": "model"}], "model_path": "m"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen.append(body["prompt"])
        choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        self.answer({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": usage})

    def log_message(self, *_):
        pass


def free():
    import socket
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


worker = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Worker)
threading.Thread(target=worker.serve_forever, daemon=True).start()
port, metrics = free(), free()
smg = subprocess.Popen([sys.argv[1], "launch", "--worker-urls", f"http://127.0.0.1:{worker.server_port}", "--host", "127.0.0.1",
                        "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics),
                        "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ask(prompt):
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


try:
    for _ in range(300):
        if ask("a text")[0] == 200:
            break
        time.sleep(0.1)
    seen.clear()
    got = {name: ask(prompt) for name, prompt in {"text": "a text", "texts": ["a", "b"], "ids": [1, 2, 3]}.items()}
    for name, (status, text) in got.items():
        print(f"{name}: {status} {text[:160]}")
    print("the worker saw", seen)
    assert got["text"][0] == 200 and got["ids"][0] == 400 and "StringOrArray" in got["ids"][1], got
    assert [1, 2, 3] not in seen, seen
finally:
    smg.terminate()
    smg.wait()
PY
python3 -m venv "$T/venv"
"$T/venv/bin/pip" install --quiet --disable-pip-version-check smg==1.13.0
"$T/venv/bin/python" "$T/check.py" "$T/venv/bin/smg"
