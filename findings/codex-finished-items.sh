#!/usr/bin/env bash
# Guess: a client of the Responses API shows the text of response.output_text.delta, and takes the answer
# from response.completed, which holds all of it. It repeats a request as `retry-after` and
# `x-should-retry` say.
# Seen: Codex CLI 0.171.0 takes items from response.output_item.done alone. Without that event it prints
# nothing and ends with status 0, though the deltas and response.completed have the text. Without
# response.created, output_item.added and all deltas the answer is whole. Without response.completed the
# request is sent five times more, each time with the finished answer before it in its input, so an answer
# whose last event is lost is paid for six times. An `error` event is not read: it counts as a stream that
# was cut. response.failed is repeated five times, but not with the codes context_length_exceeded,
# invalid_prompt and server_is_overloaded. A 503 is sent 30 times (five at once, six rounds), whatever
# `x-should-retry` says; a 400 once. `wire_api` may only be "responses"; no other path is called.
# Run with @openai/codex 0.171.0 against a scripted server on this machine; a download of 180 MB, and two
# minutes.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
npm install --silent --no-audit --no-fund --prefix "$T" @openai/codex@0.171.0 >/dev/null
mkdir "$T/home" "$T/work"
cat >"$T/items.py" <<'PY'
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading

top = pathlib.Path(sys.argv[1])


class Scripted(http.server.BaseHTTPRequestHandler):
    answer, seen = (200, ""), []

    def do_POST(self):
        Scripted.seen.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
        status, body = Scripted.answer
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if status == 200 else "application/json")
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        Scripted.seen.append((self.path, None))
        self.send_error(404)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
threading.Thread(target=server.serve_forever, daemon=True).start()
text = {"type": "output_text", "text": "All done.", "annotations": [], "logprobs": []}
item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5,
         "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 14}
response = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "m", "output": []}
within = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
events = [
    {"type": "response.created", "response": response},
    {"type": "response.output_item.added", "output_index": 0, "item": item | {"status": "in_progress", "content": []}},
    {"type": "response.output_text.delta", "delta": "All done.", "logprobs": []} | within,
    {"type": "response.output_item.done", "output_index": 0, "item": item},
    {"type": "response.completed", "response": response | {"status": "completed", "output": [item], "usage": usage}},
]


def stream(drop=(), more=()):
    """The whole answer as a stream, without the events whose names are in `drop`."""
    kept = [event for event in events if event["type"].removeprefix("response.") not in drop] + list(more)
    kept = [event | {"sequence_number": at} for at, event in enumerate(kept)]
    return 200, "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in kept)


def failed(code):
    error = {"code": code, "message": "the message"}
    last = {"type": "response.failed", "response": response | {"status": "failed", "error": error}}
    return stream(("output_item.added", "output_text.delta", "output_item.done", "completed"), [last])


def run(answer, wire="responses"):
    """How many requests an answer causes, what is printed, and the exit status."""
    Scripted.answer, Scripted.seen = answer, []
    base = f"http://127.0.0.1:{server.server_port}/v1"
    provider = f'model_providers.local={{name="local",base_url="{base}",wire_api="{wire}",env_key="KEY"}}'
    client = [top / "node_modules/.bin/codex", "exec", "--skip-git-repo-check", "-c", "model_provider=local",
              "-c", "model=m", "-c", provider, "say hi"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(top / "home"), "KEY": "none"}
    done = subprocess.run(client, cwd=top / "work", env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=180)
    assert all(path == "/v1/responses" for path, _ in Scripted.seen), "this has changed: another path"
    return len(Scripted.seen), done.stdout.strip(), done.returncode


def check(name, seen, expected):
    print(f"{name}: {seen}")
    assert seen == expected, f"this has changed: {expected} before"


check("whole", run(stream()), (1, "All done.", 0))
check("no output_item.done", run(stream(("output_item.done",))), (1, "", 0))
check("only output_item.done and completed", run(stream(("created", "output_item.added", "output_text.delta"))),
      (1, "All done.", 0))
check("no completed", run(stream(("completed",)))[::2], (6, 1))
answers = [sum(item.get("role") == "assistant" for item in body["input"]) for _, body in Scripted.seen]
check("  answers in the inputs", answers, [0, 1, 2, 3, 4, 5])
error = {"type": "error", "code": "server_error", "message": "the message", "param": None}
check("an error event", run(stream(("output_item.added", "output_text.delta", "output_item.done", "completed"), [error]))[::2],
      (6, 1))
for code, times in [("server_error", 6), ("rate_limit_exceeded", 6), ("context_length_exceeded", 1),
                    ("invalid_prompt", 1), ("server_is_overloaded", 1)]:
    check(f"response.failed, {code}", run(failed(code))[::2], (times, 1))
refused = json.dumps({"error": {"message": "no", "type": "server_error", "param": None, "code": None}})
check("400", run((400, refused))[::2], (1, 1))
check("503, x-should-retry: false", run((503, refused))[::2], (30, 1))
check("wire_api chat", run(stream(), "chat")[::2], (0, 1))
PY
python3 "$T/items.py" "$T"
