"""Renders a folder of chat templates with transformers and with skein-text, and says where they differ.

    cargo build -p skein-text --example render
    python compare_templates.py FOLDER target/debug/examples/render [--show NAME]

FOLDER holds templates as *.jinja: those of public models, which are not in this repository. Each renders five
conversations. A template is `equal` if all of its prompts are, where an error of both counts; `refused` if
skein-text does not compile it. --show prints the prompts that differ.
"""

import argparse
import collections
import json
import pathlib
import subprocess

import templates

PARAMETERS = {"type": "object", "$defs": {"Unit": {"type": "string", "enum": ["°C", "K"]}}, "properties": {
    "city": {"type": "string", "description": "City & \"country\", it's <required>", "default": None},
    "range": {"type": "object", "properties": {"low": {"type": "number", "minimum": -1e-7, "maximum": 1e16},
                                               "high": {"type": ["number", "null"], "exclusiveMaximum": 2.5e+22}},
              "required": ["low"], "additionalProperties": False},
    "days": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 7, "default": [1, 2]},
    "unit": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}, "exact": {"type": "boolean", "default": True}},
    "required": ["city", "range"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather\nof a city.", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "clock", "description": "Time.",
                                           "parameters": {"type": "object", "properties": {}}}}]


def call(name, number, arguments):
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


NUMBERS = {"city": "Zürich", "range": {"low": 1e-05, "high": None}, "days": [1, 2], "exact": False, "scale": 1e16, "zero": -0.0}
CONVERSATIONS = {
    "plain": dict(messages=[say("user", "Hello!")]),
    "system": dict(messages=[say("system", "Be brief."), say("user", " Hi \n"), say("assistant", "Hello."), say("user", "Bye <b>")]),
    "nested tools": dict(messages=[say("system", "Use tools."), say("user", "Weather?")], tools=TOOLS),
    "call and result": dict(messages=[say("user", "Weather?"), say("assistant", "", tool_calls=[call("weather", 1, NUMBERS)]),
                                      say("tool", '{"celsius": 21.5}', tool_call_id="call00001", name="weather"),
                                      say("assistant", "Mild."), say("user", "Thanks")], tools=TOOLS),
    "reasoning, two calls": dict(messages=[
        say("user", "Both?"),
        say("assistant", "Let me look.", reasoning_content="Two calls.\nGo.", thinking="Two calls.\nGo.",
            tool_calls=[call("weather", 1, {"city": "it's \"x\""}), call("clock", 2, {})]),
        say("tool", "sunny", tool_call_id="call00001", name="weather"), say("tool", "12:00", tool_call_id="call00002", name="clock")],
        tools=TOOLS),
}
OWN = {"bos_token": "<s>", "eos_token": "</s>"}


def ours(program, cases):
    asked = []
    for template, arguments in cases:
        rest = {name: value for name, value in arguments.items() if name != "messages"}
        asked.append({"template": template, "own": OWN, "messages": arguments["messages"], "add_generation_prompt": True, "arguments": rest})
    answer = subprocess.run([program], input=json.dumps(asked), capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def verdict(theirs, mine):
    if "refused" in mine:
        return "refused"
    if "error" in theirs and "error" in mine:
        return "equal"
    return "equal" if theirs.get("expected") == mine.get("expected") else "different"


def show(name, case, theirs, mine):
    one, other = (result.get("expected", "error: " + str(result.get("error", result.get("refused")))) for result in (theirs, mine))
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    print(f"  {name} / {case} at {at}:\n    theirs {one[max(0, at - 60):at + 160]!r}\n    ours   {other[max(0, at - 60):at + 160]!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("program")
    parser.add_argument("--show", help="print the differences of templates whose name contains this")
    options = parser.parse_args()
    sources = {file.name: file.read_text() for file in sorted(options.folder.glob("*.jinja"))}
    cases = [(name, case, arguments) for name in sources for case, arguments in CONVERSATIONS.items()]
    mine = ours(options.program, [(sources[name], arguments) for name, _, arguments in cases])
    worst = {}
    for (name, case, arguments), mine in zip(cases, mine):
        theirs = templates.render(sources[name], OWN, arguments | {"add_generation_prompt": True})
        found = verdict(theirs, mine)
        worst[name] = max(worst.get(name, "different" if found == "different" else found), found, key=["equal", "different", "refused"].index)
        if found != "equal" and options.show is not None and options.show in name:
            show(name, case, theirs, mine)
    for name, found in worst.items():
        print(f"{found:10} {name}")
    print(dict(collections.Counter(worst.values())), "of", len(sources), "templates")


if __name__ == "__main__":
    main()
