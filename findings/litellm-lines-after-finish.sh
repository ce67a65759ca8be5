#!/usr/bin/env bash
# Guess: the id: lines and comments of server-sent events have no meaning for a client of chat completions
# that does not read them, so a server may send them anywhere, and the usage that it reports is what its
# client shows.
# Seen: litellm 1.110.2, provider hosted_vllm (its name for a vLLM server), reads lines, not events. A
# line that is no data: line, an id: or a comment, between the chunk with the finish_reason and the chunk
# with the usage makes it drop the server's usage, although stream_options asks for it. It then reports
# numbers of its own tokenizer, without a word: 8 for 300 prompt tokens, 2 for 200, and no cached ones.
# Text, finish_reason and calls are whole. Such lines anywhere else do no harm, and provider openai reads
# events. Likewise openrouter, deepseek, together_ai and xai (seen once, not run here). So no line of
# another kind should stand between these two chunks.
# Run with litellm 1.110.2 against a scripted server on this machine; a download of 60 MB, and a minute.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install litellm==1.110.2
cat >"$T/lines.py" <<'PY'
import http.server
import json
import threading

import litellm


class Scripted(http.server.BaseHTTPRequestHandler):
    body = ""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(Scripted.body.encode())  # HTTP/1.0: the connection's end is the body's

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
threading.Thread(target=server.serve_forever, daemon=True).start()


def chunk(choices, **more):
    return "data: " + json.dumps({"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices} | more) + "\n\n"


def choice(delta, finish_reason=None):
    return chunk([{"index": 0, "delta": delta, "finish_reason": finish_reason}])


counts = {"prompt_tokens": 300, "completion_tokens": 200, "total_tokens": 500, "prompt_tokens_details": {"cached_tokens": 128}}
first, text, finish, usage = choice({"role": "assistant", "content": ""}), choice({"content": "half whole"}), choice({}, "stop"), chunk([], usage=counts)
theirs, made_up = (300, 200, 128), (8, 2, None)
cases = [
    ("data lines only", [first, text, finish, usage], theirs),
    ("an id before each event", ["id: 1\n" + event for event in (first, text, finish, usage)], made_up),
    ("an id before each but the last", ["id: 1\n" + first, "id: 2\n" + text, "id: 3\n" + finish, usage], theirs),
    ("a comment within the text", [first, ": wait\n\n", text, finish, usage], theirs),
    ("a comment after the finish", [first, text, finish, ": wait\n\n", usage], made_up),
]
for name, events, expected in cases:
    for provider, value in (("openai", theirs), ("hosted_vllm", expected)):
        Scripted.body = "".join(events) + "data: [DONE]\n\n"
        stream = litellm.completion(
            model=f"{provider}/m", api_base=f"http://127.0.0.1:{server.server_port}/v1", api_key="none",
            messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        (last,) = [c.usage for c in chunks if getattr(c, "usage", None)]
        details = last.prompt_tokens_details
        seen = last.prompt_tokens, last.completion_tokens, details.cached_tokens if details else None
        print(f"{name}, {provider}: {said!r}, {seen}")
        assert said == "half whole" and seen == value, f"this has changed: {value} before"
PY
LITELLM_LOCAL_MODEL_COST_MAP=True "$T/v/bin/python" "$T/lines.py"
