"""Renders assistant turns with the chat templates of public models, as a model that follows its template
writes them, and records the calls and the reasoning in each.

The templates are those that llama.cpp collects (source package of llama-cpp-python, here 0.3.36), some that
xinference 4.1.0 carries, and files, here of EXAONE 4 and Olmo 3.1:
    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    pip download --no-deps xinference==4.1.0
    python formats.py llama_cpp_python-*.tar.gz xinference-*.whl EXAONE-4.0-32B.jinja \\
        Olmo-3.1-32B-Instruct.jinja
The templates are not checked in. Checked in are their outputs, and which marks of
text/src/formats/detect.rs they contain.
"""

import datetime
import json
import pathlib
import re
import sys
import tarfile
import zipfile

from jinja2.exceptions import TemplateError, UndefinedError
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2026, 3, 9, 8, 5, 7)
MARKS = re.findall(r'"((?:[^"\\]|\\.)*)"', (HERE.parents[1] / "text/src/formats/detect.rs").read_text().split("MARKS")[1].split("];")[0])
MARKS = [mark.encode().decode("unicode_escape").encode("latin-1", "ignore").decode("utf-8", "ignore") if "\\" in mark else mark for mark in MARKS]
MARKS += ["</think>", "[/THINK]", "</seed:think>", "<|END_THINKING|>", "<channel|>", "<response>", "<answer>", "<|START_RESPONSE|>", "<|START_TEXT|>"]

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}},
]
CALLS = [("get_weather", {"city": "Zürich \"HB\"", "days": 2, "tags": ["a", "b"]}), ("now", {"zone": "UTC"})]


# Models of xinference that llama.cpp does not collect.
OTHERS = ["Ernie4.5", "GLM-4.7", "Kimi-K2.5", "MiniMax-M2.5", "Qwen3-Next-Instruct", "Qwen3-Next-Thinking", "glm-5.3", "qwen3.6", "qwen3.8"]

# Arguments with which a template shows reasoning that it leaves out, or leaves reasoning to the model.
THINKING = [{}, {"enable_thinking": True}, {"enable_thinking": True, "skip_think": False}]


def templates(paths):
    """Names and sources of all templates."""
    for path in map(pathlib.Path, paths):
        if path.suffix == ".jinja":
            yield path.stem, path.read_text()
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                for name in OTHERS:
                    models = json.loads(wheel.read(f"xinference/model/llm/models/{name}.json"))
                    yield name, (models[0] if isinstance(models, list) else models)["chat_template"]
        else:
            with tarfile.open(path) as tar:
                for member in tar:
                    if "models/templates/" in member.name and member.name.endswith(".jinja"):
                        yield pathlib.PurePosixPath(member.name).stem, tar.extractfile(member).read().decode()


def turn(template, tokens, message, thinking):
    """Text that the template renders for `message`, after the generation prompt."""
    given = {"tools": TOOLS, "documents": None} | tokens | thinking
    user = {"role": "user", "content": "Weather?"}
    # The prompt of a reasoning model may open the reasoning block; the turn then starts inside it.
    prompt = template.render(messages=[user], add_generation_prompt=True, strftime_now=NOW.strftime, **given)
    # Templates remove the reasoning of earlier messages, so this message is the last one.
    whole = template.render(messages=[user, message], add_generation_prompt=False, strftime_now=NOW.strftime, **given)
    common = 0
    while common < min(len(prompt), len(whole)) and prompt[common] == whole[common]:
        common += 1
    return prompt, whole[common:] if common == len(prompt) else None


def message(calls, thought, form, own_ids):
    # Kimi's templates write a call's id instead of its name; ours have this form for such models.
    made = [{"type": "function", "id": f"functions.{name}:{at}" if own_ids else f"call0000{at}", "function": {"name": name, "arguments": arguments if form == "object" else json.dumps(arguments, ensure_ascii=False)}}
            for at, (name, arguments) in enumerate(calls)]
    out = {"role": "assistant", "content": "" if calls else "It is sunny.", "tool_calls": made} if made else {"role": "assistant", "content": "It is sunny."}
    return out | ({"reasoning_content": thought, "thinking": thought} if thought else {})


def case(source, calls, thought):
    """The rendered turn of an assistant, in the first form of arguments that the template takes."""
    found = []
    for thinking in THINKING:
        # Like our router: arguments are an object unless the template needs text.
        for form in ("object", "text"):
            try:
                template = _compile_jinja_template(source)
                prompt, written = turn(template, {"bos_token": "<s>", "eos_token": "</s>"}, message(calls, thought, form, "<|tool_calls_section_begin|>" in source), thinking)
            except (TemplateError, UndefinedError, TypeError, AttributeError, ValueError):
                continue
            shows = not calls or any(mark in (written or "") for mark in ('"city"', ">city<", "=city>", "city=", "city:"))
            if written is not None and shows:
                found.append({"prompt_end": prompt[-40:], "text": written, "thought": thought if thought and thought in written else "",
                              "content": "" if calls else "It is sunny.", "calls": [[name, arguments] for name, arguments in calls]})
                break
    return max(found, key=lambda one: bool(one["thought"]), default=None)


def make(paths):
    out = []
    for name, source in sorted(templates(paths)):
        cases = [case(source, calls, thought) for calls in ([], CALLS[:1], CALLS) for thought in ("", "I need the weather.")]
        cases = [one for one in cases if one]
        if cases:
            out.append({"name": name, "marks": [mark for mark in MARKS if mark and mark in source], "cases": cases})
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in out)
    (HERE / "formats.json").write_text(f"[\n{lines}\n]\n")
    print(f"formats.json: {len(out)} templates, {sum(len(one['cases']) for one in out)} cases")


if __name__ == "__main__":
    make(sys.argv[1:])
