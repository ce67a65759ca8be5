#!/usr/bin/env bash
# Guess: a benchmark's request latency ends when the answer ends: at the finish reason, at the usage that
# the benchmark itself asked for, or at `data: [DONE]`. And a benchmark that asks for usage counts tokens
# by it.
# Seen: aiperf 0.13.0 always sends stream_options.include_usage, but a request ends at the last chunk with
# text, reasoning or tool calls: 600 ms between the last text and the chunk with the finish reason and 600
# ms more before the usage do not change request latency or tokens per second. The time to the first token
# ends at the first such chunk, so a chunk with only the role or with empty text does not count, and
# reasoning does. Output length is text put through the client's tokenizer, even where the usage says 50
# tokens and the client counts 3; only with --use-server-token-count is it 50. The first thing sent is GET
# /metrics; neither /health nor /v1/models is asked. guidellm 0.8.1 ends the same request at [DONE] and
# counts by usage, so the two tools report another latency, length and speed for the same bytes (seen
# once, not run here).
# Run with aiperf 0.13.0 against a scripted server on this machine; packages of 1.2 GB once installed, and
# some minutes.
set -euo pipefail
T=$(mktemp -d)
trap 'kill "${SERVER:-}" 2>/dev/null || true; rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install aiperf==0.13.0
cat >"$T/tokenizer.py" <<'PY'
import json
import sys

from tokenizers import Tokenizer, models, pre_tokenizers

words = ["[UNK]", "one", "two", "three"] + [f"w{number}" for number in range(60)]
tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.save(sys.argv[1] + "/tokenizer.json")
with open(sys.argv[1] + "/tokenizer_config.json", "w") as file:
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}, file)
PY
cat >"$T/server.py" <<'PY'
import http.server
import json
import sys
import time


def chunk(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


ROLE = chunk({"role": "assistant", "content": ""})
USAGE = chunk({}) | {"choices": [], "usage": {"prompt_tokens": 77, "completion_tokens": 50, "total_tokens": 127}}
TEXT = [(0.2, chunk({"content": text})) for text in ["one", " two", " three"]]
MODELS = {
    "prompt-end": [(0.2, ROLE), *TEXT, (0, chunk({}, "stop")), (0, USAGE)],
    "late-end": [(0.2, ROLE), *TEXT, (0.6, chunk({}, "stop")), (0.6, USAGE)],
    "reasoning": [(0.2, ROLE), (0.2, chunk({"reasoning": "two"})), (0.4, chunk({"content": "one"})),
                  (0, chunk({}, "stop")), (0, USAGE)],
}


class Scripted(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.log()
        self.send_error(404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.log(sorted(body))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for wait, event in MODELS[body["model"]]:
            time.sleep(wait)
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log(self, fields=""):
        print(self.command, self.path, *fields, file=sys.stderr, flush=True)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
print(server.server_port, flush=True)
server.serve_forever()
PY
cat >"$T/check.py" <<'PY'
import json
import sys

case, path = sys.argv[1:]
with open(path + "/profile_export.jsonl") as file:
    metrics = {name: metric["value"] for name, metric in json.loads(file.readline())["metrics"].items()}
first, latency = metrics["time_to_first_token"], metrics["request_latency"]
length = metrics["output_sequence_length"]
print(f"{case}: first token after {first:.0f} ms, latency {latency:.0f} ms, {length} tokens")
tokens = {"prompt-end": 3, "late-end": 3, "late-end, server's count": 50, "reasoning": 2}
assert 400 <= first < 650, "this has changed"
assert 800 <= latency < 1150, "this has changed: 2000 ms if the whole late answer counted"
assert length == tokens[case], "this has changed"
PY
mkdir "$T/tokens"
"$T/v/bin/python" "$T/tokenizer.py" "$T/tokens"
"$T/v/bin/python" "$T/server.py" >"$T/port" 2>"$T/seen" &
SERVER=$!
until [ -s "$T/port" ]; do sleep 0.1; done
measure() { # case, model, further flags
  "$T/v/bin/aiperf" profile -m "$2" --url "http://127.0.0.1:$(cat "$T/port")" --endpoint-type chat --streaming \
    --tokenizer "$T/tokens" --request-count 1 --concurrency 1 --isl 8 --osl 8 --artifact-dir "$T/out" --ui none \
    "${@:3}" >"$T/log" 2>&1 ||
    { tail -30 "$T/log"; exit 1; }
  "$T/v/bin/python" "$T/check.py" "$1" "$T/out"
  rm -r "$T/out"
}
measure prompt-end prompt-end
measure late-end late-end
measure "late-end, server's count" late-end --use-server-token-count
measure reasoning reasoning
sort "$T/seen" | uniq -c
head -1 "$T/seen" | grep -qx 'GET /metrics' || { echo "this has changed: the first request"; exit 1; }
! grep -qE 'health|models' "$T/seen"
grep -q 'POST /v1/chat/completions max_completion_tokens messages model stream stream_options' "$T/seen"
