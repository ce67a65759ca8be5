#!/usr/bin/env bash
# Guess: a client of the Messages API acts on the status and on error.type; error.message is for people.
# After an error inside a stream it streams again.
# Seen: Claude Code 2.1.332 reads English sentences of a 400. "input length and `max_tokens` exceed
# context limit: 12000 + 32000 > 40960" makes it ask again with 27960 tokens (1,000 fewer than are left);
# the same facts in OpenAI's words count as a prompt that is too long, which ends a session of one
# message. An image that a tool has read is replaced by text if the message begins with its place,
# `messages.2.content.0.tool_result.content.0.image:`; "this model does not support images" without the
# place is repeated with other beta headers until it gives up. Results of its own ToolSearch are blocks of
# type tool_reference; after three refusals it declares all its tools and goes on. An error event inside a
# stream is followed by a request without `stream`. A stream without message_stop is a whole answer, one
# without message_delta is continued by another request. For a model that it does not know it asks for
# 32,000 tokens, so a server of a short context sees the first sentence's case at once.
# Run with @anthropic-ai/claude-code 2.1.332 against a scripted server on this machine; a download of 190
# MB, and a minute.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
npm install --silent --no-audit --no-fund --prefix "$T" @anthropic-ai/claude-code@2.1.332 >/dev/null
mkdir "$T/home" "$T/work"
cat >"$T/sentences.py" <<'PY'
import http.server
import json
import os
import pathlib
import struct
import subprocess
import sys
import threading
import zlib

top = pathlib.Path(sys.argv[1])


class Scripted(http.server.BaseHTTPRequestHandler):
    answers, seen = [], []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Scripted.seen.append(body)
        status, kind, answer = Scripted.answers[min(len(Scripted.seen), len(Scripted.answers)) - 1]
        if status == 200 and not body.get("stream"):
            kind, answer = "application/json", json.dumps(whole("again"))
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(answer.encode())

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
threading.Thread(target=server.serve_forever, daemon=True).start()


def whole(text):
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "stop_sequence": None, "content": [{"type": "text", "text": text}] if text else [],
            "usage": {"input_tokens": 9, "output_tokens": 1}}


def stream(block, stop="end_turn", drop=(), more=()):
    """A streamed answer of one block, without the events named in `drop`."""
    shown = {"type": "text", "text": ""} if block["type"] == "text" else block | {"input": {}}
    delta = ({"type": "text_delta", "text": block["text"]} if block["type"] == "text"
             else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
    events = [
        {"type": "message_start", "message": whole("") | {"stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": shown},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    events = [event for event in events if event["type"] not in drop] + list(more)
    return 200, "text/event-stream", "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)


def calls(name, **arguments):
    return stream({"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}, "tool_use")


def refused(message):
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return 400, "application/json", json.dumps(error)


def run(*answers):
    """The requests that these answers cause, and what the client prints at last."""
    Scripted.answers, Scripted.seen = answers, []
    environment = {"PATH": os.environ["PATH"], "HOME": str(top / "home"), "ANTHROPIC_AUTH_TOKEN": "none",
                   "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}", "DISABLE_AUTOUPDATER": "1"}
    client = [top / "node_modules/.bin/claude", "-p", "say hi", "--model", "m", "--allowedTools", "Read,ToolSearch"]
    done = subprocess.run(client, cwd=top / "work", env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=120)
    return Scripted.seen, (done.stdout.strip().splitlines() or [""])[-1]


def result(request):
    """The first block of the tool result that a request sends."""
    blocks = [b for m in request["messages"] if isinstance(m["content"], list) for b in m["content"]]
    return next(b for b in blocks if b["type"] == "tool_result")["content"][0]


def check(name, seen, expected):
    print(f"{name}: {seen}")
    assert seen == expected, f"this has changed: {expected} before"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


picture = top / "work/red.png"
picture.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
                    + chunk(b"IDAT", zlib.compress((b"\0" + b"\x80\0\0" * 8) * 8)) + chunk(b"IEND", b""))
done = stream({"type": "text", "text": "All done."})
half = {"type": "text", "text": "Half."}
lost = {"type": "error", "error": {"type": "api_error", "message": "lost"}}

sentence = "input length and `max_tokens` exceed context limit: 12000 + 32000 > 40960, decrease input length or `max_tokens`"
requests, _ = run(refused(sentence), done)
check("max_tokens, Anthropic's sentence", [r["max_tokens"] for r in requests], [32000, 27960])
sentence = "This model's maximum context length is 40960 tokens. However, you requested 44000 tokens (12000 in the messages, 32000 in the completion)."
requests, last = run(refused(sentence), done)
check("max_tokens, OpenAI's sentence", ([r["max_tokens"] for r in requests], last[:18]), ([32000], "Prompt is too long"))

reads = calls("Read", file_path=str(picture))
place = "messages.2.content.0.tool_result.content.0.image"
requests, _ = run(reads, refused(f"{place}: this model reads text only."), done)
check("an image, with its place", [result(r)["type"] for r in requests[1:]], ["image", "text"])
requests, _ = run(reads, refused("this model does not support images"))
kinds = {result(r)["type"] for r in requests[1:]}
check("an image, without", (len(requests) > 3, kinds), (True, {"image"}))

no = refused("a block of type tool_reference is not supported")
requests, last = run(calls("ToolSearch", query="select:WebFetch"), no, no, no, done)
declared = [any(tool["name"] == "ToolSearch" for tool in r["tools"]) for r in requests]
check("tool_reference refused", ([result(r)["type"] for r in requests[1:]], declared, last),
      (["tool_reference"] * 3 + ["text"], [True] * 4 + [False], "All done."))

requests, last = run(stream(half, drop=("content_block_stop", "message_delta", "message_stop"), more=[lost]))
check("an error event", ([bool(r.get("stream")) for r in requests], last), ([True, False], "again"))
requests, last = run(stream(half, drop=("message_stop",)), done)
check("no message_stop", (len(requests), last), (1, "Half."))
requests, last = run(stream(half, drop=("message_delta", "message_stop")), done)
check("no message_delta", (len(requests), len(requests[1]["messages"]), last), (2, 4, "All done."))
PY
python3 "$T/sentences.py" "$T"
