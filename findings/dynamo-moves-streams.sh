#!/usr/bin/env bash
# Guess: NVIDIA Dynamo, which can move requests between workers, moves a stream whose worker dies.
# Seen: ai-dynamo 1.6.1 does so only with --migration-limit above its default, 0. By default the client
# gets the ten tokens, an error object with the code 503, and then `data: [DONE]`. With a limit of 1 the
# other worker is asked with the prompt and those ten tokens, for ten tokens less, and the client gets the
# rest with no comment between. So the promise to finish streams depends on a flag, and `[DONE]` is no
# proof of a whole answer.
# Run with ai-dynamo 1.6.1: its frontend and two workers of its runtime that give fixed tokens, found
# through files, all on this machine. A download of 90 MB, and two minutes.
set -euo pipefail
T=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null; rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install ai-dynamo-runtime==1.6.1 "pydantic<2.13.6" uvloop msgspec prometheus-client pyzmq packaging pyyaml httpx==0.28.1
"$T/v/bin/pip" -q install --no-deps ai-dynamo==1.6.1
mkdir "$T/model"
cat >"$T/worker.py" <<'PY'
import asyncio
import os
import sys

from dynamo.common.utils.runtime import create_runtime
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model

model, seen, kill = sys.argv[1:]


async def generate(request, context=None):
    prompt, wanted = request["token_ids"], request["stop_conditions"]["max_tokens"]
    with open(seen, "a") as log:
        log.write(f"{len(prompt)} {wanted}\n")
    for at in range(wanted):
        await asyncio.sleep(0.05)
        yield {"token_ids": [3]} | ({"finish_reason": "length"} if at + 1 == wanted else {})
        if at == 9 and os.path.exists(kill):
            os.remove(kill)
            await asyncio.sleep(0.5)
            os._exit(1)


async def main():
    runtime, _ = create_runtime("file", "tcp")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate))
    await register_model(ModelInput.Tokens, ModelType.Completions, endpoint, model, "m", worker_type=WorkerType.Aggregated)
    await serving


asyncio.run(main())
PY
cat >"$T/model.py" <<'PY'
import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
words = {"<unk>": 0, "<end>": 1, "hi": 2, "x": 3}
special = [{"id": id, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
           for word, id in words.items() if word.startswith("<")]
tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
             "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
             "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}
config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 8,
          "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
          "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 1}
(folder / "tokenizer.json").write_text(json.dumps(tokenizer))
(folder / "config.json").write_text(json.dumps(config))
(folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "unk_token": "<unk>"}))
PY
cat >"$T/client.py" <<'PY'
import json
import sys

import httpx

url, expected = sys.argv[1:]
request = {"model": "m", "prompt": "hi", "max_tokens": 20, "stream": True}
answer = httpx.post(url, json=request, timeout=60).raise_for_status().text
events = [line.removeprefix("data: ") for line in answer.splitlines() if line]
assert all(line.startswith("data: ") for line in answer.splitlines() if line), answer
objects = [json.loads(event) for event in events if event.startswith("{")]
tokens = sum("x" in choice["text"] for event in objects for choice in event.get("choices", []))
errors = [event["error"]["code"] for event in objects if "error" in event]
seen = f"{tokens} tokens, errors {errors}, {events[-1]}"
print("  " + seen)
assert expected in ("", seen), f"this has changed: {expected} before"
PY
"$T/v/bin/python" "$T/model.py" "$T/model"
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
export DYN_DISCOVERY_BACKEND=file DYN_TCP_RPC_HOST=127.0.0.1 DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1
export DYN_EVENT_PLANE_HOST=127.0.0.1 DYN_SYSTEM_HOST=127.0.0.1

try() { # flags, what the client sees, what the workers were asked
  local port at pids=() url
  rm -rf "$T/kv" "$T/seen" "$T/kill"
  mkdir "$T/kv"
  export DYN_FILE_KV="$T/kv"
  port=$(free) url="http://127.0.0.1:$port/v1/completions"
  for at in 1 2; do
    "$T/v/bin/python" "$T/worker.py" "$T/model" "$T/seen" "$T/kill" >"$T/worker.$at" 2>&1 & pids+=($!)
  done
  # shellcheck disable=SC2086
  "$T/v/bin/python" -m dynamo.frontend --http-host 127.0.0.1 --http-port "$port" $1 >"$T/log" 2>&1 & pids+=($!)
  echo "dynamo.frontend $1"
  for at in $(seq 100); do
    # Both workers must have been asked: round robin.
    "$T/v/bin/python" "$T/client.py" "$url" "20 tokens, errors [], [DONE]" >/dev/null 2>&1 && [ "$(wc -l <"$T/seen")" -ge 4 ] && break
    sleep 0.3
  done
  [ "$at" -lt 100 ] || { tail "$T/log" "$T"/worker.*; exit 1; }
  : >"$T/seen"
  touch "$T/kill"
  "$T/v/bin/python" "$T/client.py" "$url" "$2"
  echo "  prompt tokens and max_tokens: $(paste -sd, "$T/seen")"
  [ "$(paste -sd, "$T/seen")" = "$3" ] || { echo "this has changed: $3 before"; exit 1; }
  kill -9 "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
}

try "" "10 tokens, errors [503], [DONE]" "1 20"
try "--migration-limit 1" "20 tokens, errors [], [DONE]" "1 20,11 10"
