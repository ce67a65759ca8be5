#!/usr/bin/env bash
# Guess: a client library for streamed answers raises when the connection closes before the answer says that
# it is complete, as an HTTP client does for a body that is shorter than its length.
# Seen: openai 3.57.0 (Python) ends the loop quietly when a chat stream closes without a finish_reason and
# without `data: [DONE]`, and when a Responses stream closes without response.completed: half an answer looks
# like a whole one. Nothing is retried. An error object inside a chat stream raises APIError. In a Responses
# stream, `event: error` and response.failed are delivered as events and end quietly; an error object without
# a type raises. So a server that breaks off must say so in the stream, and a client must look for the end.
# Run with openai 3.57.0 against a scripted server on this machine; a download of 6 MB, and 10 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install openai==3.57.0
cat >"$T/cut.py" <<'PY'
import http.server
import json
import threading

import openai


class Scripted(http.server.BaseHTTPRequestHandler):
    body, requests = "", 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Scripted.requests += 1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(Scripted.body.encode())  # HTTP/1.0: the connection's end is the body's

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")


def data(event):
    return f"data: {json.dumps(event)}\n\n"


def named(kind, **fields):
    return f"event: {kind}\n" + data({"type": kind, "sequence_number": 0} | fields)


def end(stream, body):
    """How many events arrive, and how the loop ends."""
    Scripted.body, Scripted.requests, seen = body, 0, 0
    try:
        for _ in stream():
            seen += 1
        how = "quietly"
    except openai.APIError as error:
        how = type(error).__name__
    assert Scripted.requests == 1
    return seen, how


def chat():
    return client.chat.completions.create(model="m", messages=[], stream=True)


def responses():
    return client.responses.create(model="m", input="x", stream=True)


chunk = data({"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m",
              "choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]})
delta = named("response.output_text.delta", delta="half", item_id="i", output_index=0, content_index=0, logprobs=[])
lost = {"error": {"message": "lost", "type": "server_error", "code": None, "param": None}}
failed = named("response.failed", response={"id": "r", "status": "failed", "error": {"code": "server_error", "message": "lost"}})
cases = [
    ("chat, closed", chat, chunk, (1, "quietly")),
    ("chat, an error object", chat, chunk + data(lost), (1, "APIError")),
    ("responses, closed", responses, delta, (1, "quietly")),
    ("responses, event: error", responses, delta + named("error", message="lost", code=None, param=None), (2, "quietly")),
    ("responses, response.failed", responses, delta + failed, (2, "quietly")),
    ("responses, an error object", responses, delta + data(lost), (1, "APIError")),
]
for name, stream, body, expected in cases:
    seen = end(stream, body)
    print(f"{name}: {seen[0]} events, then {seen[1]}")
    assert seen == expected, f"this has changed: {expected} before"
PY
"$T/v/bin/python" "$T/cut.py"
