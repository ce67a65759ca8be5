#!/usr/bin/env bash
# Guess: a chat template that shows a model its tools also shows it the calls of earlier turns.
# Seen: of the templates that llama.cpp collects, those of LFM2-8B-A1B, LFM2.5-Instruct and Granite 3.3 show
# tools and results, and leave the calls between them out without a word: the model sees an answer to nothing.
# Nor is the marker of a call in LFM2's templates, so only its vocabulary says in which form it calls.
# Run with transformers 5.24.0, without torch, and the source of llama_cpp_python 0.3.36; a download of
# 140 MB, and 3 minutes on two busy cores.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install transformers==5.24.0 jinja2==3.1.6
"$T/v/bin/pip" -q download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36 -d "$T"
tar xzf "$T"/llama_cpp_python-*.tar.gz -C "$T" --wildcards '*/models/templates/*.jinja'
cat >"$T/render.py" <<'PY'
import pathlib
import sys

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import _compile_jinja_template

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}
CALL = {"type": "function", "id": "call00000", "function": {"name": "get_weather", "arguments": {"city": "Reykjavik"}}}
TURNS = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
         {"role": "tool", "name": "get_weather", "tool_call_id": "call00000", "content": "It snows."}]
without = []
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.jinja")):
    try:
        text = _compile_jinja_template(path.read_text()).render(
            messages=TURNS, tools=[TOOL], add_generation_prompt=True, bos_token="", eos_token="", strftime_now=lambda form: "")
    except (TemplateError, TypeError):
        continue  # it wants other messages
    if "get_weather" in text and "It snows." in text and "Reykjavik" not in text:
        without.append(path.stem)
        print(f"{path.stem} shows the tool and the result, not the call; <|tool_call_start|> in it: {'<|tool_call_start|>' in path.read_text()}")
assert without == ["LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"], without
PY
"$T/v/bin/python" "$T/render.py" "$T" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
echo "the behaviour is as described"
