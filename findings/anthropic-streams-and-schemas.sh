#!/usr/bin/env bash
# Guess: anthropic's two SDKs treat a broken stream alike; an error event of a known type raises the class
# that the same error raises as an answer; the schema of a typed answer reaches the server whole; the key
# travels as x-api-key, which is the API's own header.
# Seen: anthropic 2.14.0 (Python) gives half an answer as final message, with stop_reason None, when the
# stream closes without message_stop; @anthropic-ai/sdk 1.14.0 (npm) raises from finalMessage(), even if
# only message_stop is missing, and ends quietly when events are iterated. `event: error` of type
# overloaded_error raises APIStatusError with status 200 in Python and APIError without status in npm,
# never OverloadedError, and is not retried; the type must be read. output_format and parse() send a
# schema without minimum and maximum (nor lengths of strings): these move into the description as text,
# then pydantic checks the answer against the original in Python. So an answer that keeps to the schema as
# sent can fail in the client. Both SDKs send the key as Authorization: Bearer, no beta header, and
# anthropic-version 2026-10-21.
# Run with anthropic 2.14.0, @anthropic-ai/sdk 1.14.0, node 20 against a scripted server on this machine;
# a download of 20 MB, and half a minute.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install anthropic==2.14.0
cd "$T"
npm install --silent --no-audit --no-fund @anthropic-ai/sdk@1.14.0 >/dev/null
cat >ask.mjs <<'JS'
import Anthropic from "@anthropic-ai/sdk";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";
const [port, what] = process.argv.slice(2);
const client = new Anthropic({ baseURL: `http://127.0.0.1:${port}`, apiKey: "none" });
const asked = { model: "m", max_tokens: 9, messages: [{ role: "user", content: "hi" }] };
const schema = { type: "object", properties: { age: { type: "integer", minimum: 0, maximum: 120 } }, required: ["age"], additionalProperties: false };
const ways = {
  final: async () => { const m = await client.messages.stream(asked).finalMessage(); return `${m.content[0].text}, ${m.stop_reason}`; },
  raw: async () => { let n = 0; for await (const _ of await client.messages.create({ ...asked, stream: true })) n++; return `${n} events`; },
  parse: async () => JSON.stringify((await client.messages.parse({ ...asked, output_config: { format: jsonSchemaOutputFormat(schema) } })).parsed_output),
};
try { console.log(await ways[what]()); } catch (error) { console.log(`${error.constructor.name}, status ${error.status ?? null}, type ${error.type ?? null}`); }
JS
cat >sdks.py <<'PY'
import http.server
import json
import subprocess
import threading

import anthropic
from pydantic import BaseModel, Field


class Scripted(http.server.BaseHTTPRequestHandler):
    body, seen = "", []

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Scripted.seen.append((dict((k.lower(), v) for k, v in self.headers.items()), asked))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if asked.get("stream") else "application/json")
        self.end_headers()
        self.wfile.write(Scripted.body.encode())  # HTTP/1.0: the connection's end is the body's

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none")
asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def python_final():
    try:
        with client.messages.stream(**asked) as stream:
            message = stream.get_final_message()
        return f"{message.content[0].text}, {message.stop_reason}"
    except anthropic.APIError as error:
        return f"{type(error).__name__}, status {error.status_code}, type {error.type}"


def node(what):
    return subprocess.run(["node", "ask.mjs", str(server.server_port), what], capture_output=True, text=True, check=True).stdout.strip()


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n"


message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None,
           "usage": {"input_tokens": 1, "output_tokens": 1}}
start = event("message_start", message=message)
half = start + event("content_block_start", index=0, content_block={"type": "text", "text": ""}) + event(
    "content_block_delta", index=0, delta={"type": "text_delta", "text": "half"})
all_but_stop = half + event("content_block_stop", index=0) + event(
    "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 2})
overloaded = half + event("error", error={"type": "overloaded_error", "message": "lost"})
cases = [
    ("closed in the text", half, "half, None", "AnthropicError, status null, type null", "3 events"),
    ("message_stop missing", all_but_stop, "half, end_turn", "AnthropicError, status null, type null", "5 events"),
    ("event: error", overloaded, "APIStatusError, status 200, type overloaded_error", "APIError, status null, type overloaded_error",
     "APIError, status null, type overloaded_error"),
]
for name, body, *expected in cases:
    Scripted.body, Scripted.seen = body, []
    seen = [python_final(), node("final"), node("raw")]
    print(f"{name}: Python {seen[0]!r}; npm {seen[1]!r}, iterated {seen[2]!r}")
    assert seen == expected and len(Scripted.seen) == 3, f"this has changed: {expected} before"


class Person(BaseModel):
    age: int = Field(ge=0, le=120)


Scripted.body, Scripted.seen = json.dumps(message | {"content": [{"type": "text", "text": '{"age": 7}'}], "stop_reason": "end_turn"}), []
assert client.messages.parse(**asked, output_format=Person).parsed_output.age == 7 and node("parse") == '{"age":7}'
for (headers, body), name in zip(Scripted.seen, ("Python", "npm"), strict=True):
    age = body["output_config"]["format"]["schema"]["properties"]["age"]
    print(f"{name}: {age}, version {headers['anthropic-version']}, x-api-key {'x-api-key' in headers}")
    assert "minimum" not in age and "maximum: 120" in age["description"] and "output_format" not in body
    assert headers["authorization"] == "Bearer none" and "x-api-key" not in headers and "anthropic-beta" not in headers
    assert headers["anthropic-version"] == "2026-10-21"
PY
"$T/v/bin/python" sdks.py
