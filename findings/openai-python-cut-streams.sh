#!/usr/bin/env bash
# Guess: a client library for streamed answers raises when the answer ends before it says that it is
# complete.
# Seen: openai 3.57.0 (Python) ends the loop quietly when a chat stream ends without a finish_reason and
# without `data: [DONE]`, and when a Responses stream ends without response.completed, if the body itself
# is whole: all chunks and the last one of no bytes, or, without chunks, the connection's end. Half an
# answer then looks like a whole one. Only a chunked body that is cut raises APIConnectionError. Nothing
# is retried. An error object inside a chat stream raises APIError. In a Responses stream, `event: error`
# and response.failed are delivered as events and end quietly; an error object without a type raises. So a
# server or proxy that breaks off must say so in the stream or cut its body, and a client must look for
# the end.
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
    protocol_version = "HTTP/1.1"
    body, framing, requests = "", "", 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Scripted.requests += 1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        body = Scripted.body.encode()
        if Scripted.framing != "no chunks":
            self.send_header("transfer-encoding", "chunked")
            body = b"%x\r\n%s\r\n" % (len(body), body)
        if Scripted.framing == "chunks":
            body += b"0\r\n\r\n"
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")


def data(event):
    return f"data: {json.dumps(event)}\n\n"


def named(kind, **fields):
    return f"event: {kind}\n" + data({"type": kind, "sequence_number": 0} | fields)


def end(stream, body, framing):
    """How many events arrive, and how the loop ends."""
    Scripted.body, Scripted.framing, Scripted.requests, seen = body, framing, 0, 0
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
    ("chat, ended", chat, chunk, (1, "quietly")),
    ("chat, an error object", chat, chunk + data(lost), (1, "APIError")),
    ("responses, ended", responses, delta, (1, "quietly")),
    ("responses, event: error", responses, delta + named("error", message="lost", code=None, param=None), (2, "quietly")),
    ("responses, response.failed", responses, delta + failed, (2, "quietly")),
    ("responses, an error object", responses, delta + data(lost), (1, "APIError")),
]
for name, stream, body, expected in cases:
    for framing in ["no chunks", "chunks"]:
        seen = end(stream, body, framing)
        print(f"{name}, {framing}: {seen[0]} events, then {seen[1]}")
        assert seen == expected, f"this has changed: {expected} before"
for name, stream, body in [("chat", chat, chunk), ("responses", responses, delta)]:
    seen = end(stream, body, "cut chunks")
    print(f"{name}, closed, cut chunks: {seen[0]} events, then {seen[1]}")
    assert seen == (1, "APIConnectionError"), "this has changed"
PY
"$T/v/bin/python" "$T/cut.py"
