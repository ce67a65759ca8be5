#!/usr/bin/env bash
# A router before two servers that speak the OpenAI API, such as vLLM: equal beginnings go to the same server,
# and a request whose server is lost goes to the other.
#
#   docs/examples/front.sh [SKEIN]                 before two `skein serve` on the ports 8001 and 8002
#   docs/examples/front.sh SKEIN MODEL URL URL     before your own servers of MODEL, which stay up
#
# SKEIN is target/release/skein by default. The router listens on port 8000 of 127.0.0.1. Needs curl.
set -euo pipefail
skein=${1:-target/release/skein}
model=${2:-skein-7m}
urls=("${@:3:2}")
logs=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$logs"' EXIT

# Waits until the server of the URL accepts requests.
ready() {
  for _ in $(seq 300); do
    curl -sfo "$logs/health" "$1/health" && return
    sleep 0.1
  done
  tail -n 5 "$logs"/* >&2
  exit 1
}
# Sends a prompt, and prints which server the router has chosen, and how much of the prompt it assumes to be
# cached there. A request that has moved names both servers.
ask() {
  curl -sf http://127.0.0.1:8000/v1/completions -D "$logs/headers" -o "$logs/answer" \
    -H 'x-skein-receipt: true' -H 'content-type: application/json' \
    -d '{"model": "'"$model"'", "prompt": "'"$1"'", "max_tokens": 8, "temperature": 0}'
  grep -i '^x-skein-receipt' "$logs/headers" | grep -o '"worker":"[^"]*","chosen":true,"overlap_tokens":[0-9]*'
}

if [ ${#urls[@]} = 0 ]; then
  for port in 8001 8002; do
    "$skein" serve --port "$port" --workers 1 --threads 1 >"$logs/$port" 2>&1 &
    pids+=($!)
    urls+=("http://127.0.0.1:$port")
  done
fi
ready "${urls[0]}"
ready "${urls[1]}"
"$skein" router --worker-urls "${urls[0]},${urls[1]}" --port 8000 >"$logs/router" 2>&1 &
pids+=($!)
ready http://127.0.0.1:8000

echo "two long prompts, twice each:"
rules=$(printf 'Answer in one sentence, and name the rule that you follow. %.0s' {1..8})
for _ in 1 2; do
  ask "First: $rules"
  ask "Second: $rules"
done

if [ $# -lt 3 ]; then
  kill -9 "${pids[0]}"
  wait "${pids[0]}" 2>/dev/null || true
  echo "after the death of ${urls[0]}:"
  ask "First: $rules"
  ask "Second: $rules"
fi
