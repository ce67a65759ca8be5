#!/usr/bin/env bash
# A gateway before two routers and two workers on this machine. While a stream runs, the router that serves it
# is killed; the answer is compared with that of an undisturbed request.
#
#   docs/examples/gateway.sh [SKEIN] [MODEL]      default: target/release/skein, the model that ships with it
#
# Uses the ports 8000 to 8002, 9001 and 9002 of 127.0.0.1. Needs curl.
set -euo pipefail
skein=${1:-target/release/skein}
model=("${@:2:1}")
logs=$(mktemp -d)
pids=() routers=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$logs"' EXIT

# Starts `skein` with the arguments after the name, which its log gets.
start() {
  "$skein" "${@:2}" >"$logs/$1" 2>&1 &
  pids+=($!)
}
# Waits until the port accepts requests.
ready() {
  for _ in $(seq 300); do
    curl -sfo "$logs/health" "http://127.0.0.1:$1/readyz" && return
    sleep 0.1
  done
  tail -n 5 "$logs"/* >&2
  exit 1
}
# Asks the gateway for a stream of 900 tokens, whose events go to the log of the given name. A receipt
# in the answer's headers names the router that the gateway has chosen.
stream() {
  curl -sN http://127.0.0.1:8000/v1/completions -D "$logs/$1.headers" -o "$logs/$1" \
    -H 'x-skein-receipt: true' -H 'content-type: application/json' \
    -d '{"prompt": "def main", "max_tokens": 900, "seed": 7, "ignore_eos": true, "stream": true,
         "request_id": "'"$1-$$"'"}'
}
# Prints the texts of a stream's events.
text() {
  sed -n 's/^data: .*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/p' "$1" | tr -d '\n'
}

# Without drafts, so that the answer takes long enough to be killed in the middle.
start worker-1 worker "${model[@]}" --listen 127.0.0.1:9001 --threads 1 --speculate off
start worker-2 worker "${model[@]}" --listen 127.0.0.1:9002 --threads 1 --speculate off
for port in 8001 8002; do
  start "router-$port" router "${model[@]}" --workers 127.0.0.1:9001,127.0.0.1:9002 --port "$port"
  routers[port]=$!
done
ready 8001
ready 8002
start gateway gateway "${model[@]}" --routers 127.0.0.1:8001,127.0.0.1:8002 --port 8000
ready 8000

stream undisturbed

touch "$logs/killed"
stream killed &
client=$!
until [ "$(grep -c '^data' "$logs/killed")" -gt 20 ]; do
  kill -0 "$client" # the client still runs
  sleep 0.02
done
port=$(grep -i '^x-skein-receipt' "$logs/killed.headers" | grep -o '"worker":"[^"]*","chosen":true' | grep -o '800[12]')
kill -9 "${routers[port]}"
wait "${routers[port]}" 2>/dev/null || true
echo "killed the router at port $port after $(grep -c '^data' "$logs/killed") events of its stream"
wait "$client"

grep -o '"skein":{[^}]*}' "$logs/killed" || { echo "the answer ended before its router; try again"; exit 1; }
grep -q '^data: \[DONE\]' "$logs/killed"
cmp <(text "$logs/undisturbed") <(text "$logs/killed") && echo "the answers are equal"
