#!/usr/bin/env bash
# Guess: a router that cannot continue a stream ends it in the same way everywhere: the connection closes,
# or an error object comes last, without `data: [DONE]`, which says that an answer is complete.
# Seen: when the worker dies after the tenth token, sglang-router 0.3.2 and vllm-router 0.1.17 cut the
# chunked body without a word. smg 1.13.0, of the same family, sends an error object of the type
# `stream_error` and then `data: [DONE]` in a body that is complete. None asks the other worker. openai
# 3.57.0 (Python) raises APIConnectionError for the first form, APIError for the second, and repeats
# neither. So `[DONE]` is no proof of a whole answer: a client must look for the error object and the
# finish_reason, too.
# Run with the routers before two scripted workers on this machine; a download of 100 MB, and two to four
# minutes.
set -euo pipefail
T=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$T"' EXIT
cat >"$T/worker.py" <<'PY'
import http.server
import json
import os
import sys
import time

ready, seen, kill = sys.argv[1:]


class Worker(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.split("?")[0]
        model = {"id": "m", "object": "model", "created": 1, "owned_by": "x", "root": "m", "max_model_len": 4096}
        info = {"model_path": "m", "tokenizer_path": "m", "served_model_name": "m", "is_generation": True,
                "tp_size": 1, "dp_size": 1, "version": "0.1", "max_total_num_tokens": 10000}
        body = json.dumps({"object": "list", "data": [model]} if path == "/v1/models" else info).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        with open(seen, "a") as log:
            log.write("request\n")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

        def send(data):
            event = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()

        for at in range(20):
            choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop" if at == 19 else None}
            send(json.dumps({"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}))
            time.sleep(0.05)
            if at == 9 and os.path.exists(kill):
                time.sleep(0.5)
                os._exit(1)
        send("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Worker)
with open(ready + ".part", "w") as file:
    file.write(str(server.server_port))
os.rename(ready + ".part", ready)
server.serve_forever()
PY
cat >"$T/client.py" <<'PY'
import sys

import httpx
import openai

url, expected = sys.argv[1], sys.argv[2].split(",")
if expected == ["whole"]:
    request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    text = httpx.post(f"{url}/chat/completions", json=request).text
    assert text.count('"x"') == 20 and text.endswith("data: [DONE]\n\n"), text
    sys.exit()
raw, whole, tokens, how = b"", True, 0, "quietly"
client = openai.OpenAI(base_url=url, api_key="none")
if expected[0] == "openai":
    try:
        for chunk in client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True):
            tokens += 1
    except openai.OpenAIError as error:
        how = type(error).__name__
    seen = ["openai", str(tokens), how]
else:
    request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    try:
        with httpx.stream("POST", f"{url}/chat/completions", json=request, timeout=60) as answer:
            for piece in answer.iter_bytes():
                raw += piece
    except httpx.RemoteProtocolError:
        whole = False
    tokens = raw.count(b"chat.completion.chunk")
    seen = ["body", str(tokens), "whole" if whole else "cut", "error" if b'"error"' in raw else "no error",
            "[DONE]" if b"[DONE]" in raw else "no [DONE]"]
print("  " + ", ".join(seen))
assert seen == expected, f"this has changed: {expected} before"
PY
python3 -m venv "$T/client"
"$T/client/bin/pip" -q install openai==3.57.0 httpx==0.28.1

free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

try() { # package, program, arguments, how the body ends, what openai raises
  local body
  python3 -m venv "$T/$1"
  "$T/$1/bin/pip" -q install "$1==$2"
  echo "$1 $2"
  for body in "body,10,$4" "openai,10,$5"; do
    rm -f "$T"/ready.* "$T"/seen "$T/kill"
    local pids=() urls=() port metrics at
    for at in 1 2; do
      python3 "$T/worker.py" "$T/ready.$at" "$T/seen" "$T/kill" & pids+=($!)
      until [ -s "$T/ready.$at" ]; do sleep 0.1; done
      urls+=("http://127.0.0.1:$(cat "$T/ready.$at")")
    done
    port=$(free) metrics=$(free)
    # shellcheck disable=SC2086
    "$T/$1/bin/$1" $3 --host 127.0.0.1 --port "$port" --prometheus-host 127.0.0.1 --prometheus-port "$metrics" \
      --policy round_robin --worker-urls "${urls[@]}" >"$T/log" 2>&1 & pids+=($!)
    for at in $(seq 100); do
      "$T/client/bin/python" "$T/client.py" "http://127.0.0.1:$port/v1" whole 2>/dev/null && break
      sleep 0.3
    done
    [ "$at" -lt 100 ] || { tail "$T/log"; exit 1; }
    : >"$T/seen"
    touch "$T/kill"
    "$T/client/bin/python" "$T/client.py" "http://127.0.0.1:$port/v1" "$body"
    [ "$(wc -l <"$T/seen")" = 1 ] || { echo "this has changed: the other worker was asked"; exit 1; }
    kill -9 "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
  done
}

try sglang-router 0.3.2 launch "cut,no error,no [DONE]" APIConnectionError
try vllm-router 0.1.17 "" "cut,no error,no [DONE]" APIConnectionError
try smg 1.13.0 launch "whole,error,[DONE]" APIError
