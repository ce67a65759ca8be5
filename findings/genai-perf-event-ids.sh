#!/usr/bin/env bash
# Guess: an event of a stream of server-sent events may have an `id` line before its `data` line, as the
# standard says, and a tool that measures streams reads the data all the same.
# Seen: genai-perf 0.0.16 looks at the first characters of an event. If they are `id:`, `event:` or
# `retry:`, the whole event counts as empty, its data line included. If each event of an answer begins so,
# the request is left out: request count 0, no time to the first token, no output length, and the tool
# ends with 0. An `id` line behind the data line does not help: text after `data:` is read as one JSON
# document. So a server that wants to be measured by genai-perf sends `data` lines only.
# Run with genai-perf 0.0.16, its parser alone on a recording as perf_analyzer writes it; a download of 30
# MB, and 15 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install numpy==2.4.6 orjson==3.13.0 pillow==13.0.0 PyYAML==6.0.4 rich==15.0.0 tqdm==4.70.1
"$T/v/bin/pip" -q install --no-deps genai-perf==0.0.16 # without perf_analyzer, plots and tokenizers
cat >"$T/ids.py" <<'PY'
import json
import sys
from pathlib import Path

from genai_perf.profile_data_parser import LLMProfileDataParser

MS = 1_000_000


class Words:
    """Stands in for a tokenizer: a token a word."""

    def encode(self, text, **_):
        return text.split()

    def __call__(self, texts, **_):
        return {"input_ids": [text.split() for text in texts]}


BEFORE = {"none": "", "id": "id: 7\n", "event": "event: message\n", "retry": "retry: 1000\n"}


def event(text, field):
    data = json.dumps({"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m",
                       "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
    return {"response": BEFORE[field] + f"data: {data}\n\n"}


def parse(field):
    payload = {"model": "m", "messages": [{"role": "user", "content": "hi there"}], "stream": True}
    outputs = [event(text, field) for text in ["one", " two", " three"]] + [{"response": "data: [DONE]\n\n"}]
    request = {"timestamp": 0, "request_inputs": {"payload": json.dumps(payload)}, "response_outputs": outputs,
               "response_timestamps": [100 * MS, 200 * MS, 300 * MS, 301 * MS]}
    profile = {"service_kind": "openai", "endpoint": "v1/chat/completions", "experiments": [
        {"experiment": {"mode": "concurrency", "value": 1}, "requests": [request], "window_boundaries": [0, 400 * MS]}]}
    path = Path(sys.argv[1]) / "profile_export.json"
    path.write_text(json.dumps(profile))
    statistics = LLMProfileDataParser(path, Words()).get_statistics("concurrency", "1")
    metrics = statistics.metrics.data
    first = [at // MS for at in metrics.get("time_to_first_tokens", [])]
    return metrics.get("request_count"), first, list(metrics.get("output_sequence_lengths", []))


for field in BEFORE:
    expected = ([1], [100], [3]) if field == "none" else ([0], [], [])
    seen = parse(field)
    print(f"field before data: {field}: requests {seen[0]}, first token after {seen[1]} ms, output lengths {seen[2]}")
    assert seen == expected, f"this has changed: {expected} before"
PY
TQDM_DISABLE=1 "$T/v/bin/python" "$T/ids.py" "$T"
