"""Chat templates in the style of public model families, written for this repository, and their output in
Jinja.

Rendered by transformers, so in its environment: trim_blocks and lstrip_blocks on, loop controls, a `tojson`
that keeps UTF-8, `raise_exception`, and `strftime_now` (here with a fixed time).
"""

import datetime
import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models" / "skein-7m"
NOW = datetime.datetime(2026, 3, 9, 8, 5, 7)

HEADERS = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today Date: ' ~ date_string ~ '\\n\\n' }}
{%- if tools is not none and tools %}
    {{- 'You have these functions. Reply with JSON to call one.\\n\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{{- system_message ~ '<|eot_id|>' }}
{%- for message in turns %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message and message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('one tool call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' ~ call.name ~ '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' ~ message['content'] | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

CHATML = """\
{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""

CHATML_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_user=-1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == 'user' and message.content is string
           and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.last_user = index %}
        {%- set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if thought and loop.index0 > ns.last_user %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}
                {%- set call = call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string %}
                {{- call.arguments }}
            {%- else %}
                {{- call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

INST = """\
{%- if messages[0]['role'] == 'system' -%}
    {%- set system_message = messages[0]['content'] -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set turns = messages -%}
{%- endif -%}
{{ bos_token }}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('After the optional system message, roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {%- if loop.first and system_message is defined -%}
            {{ ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else -%}
            {{ ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif -%}
    {%- elif message['role'] == 'assistant' -%}
        {{ ' ' + message['content'] + eos_token }}
    {%- else -%}
        {{ raise_exception('Only user and assistant roles are supported, with an initial system message') }}
    {%- endif -%}
{%- endfor -%}
"""

TURNS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- else -%}
                {{ raise_exception('cannot show ' ~ item['type']) }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

# Tests whitespace control: trimming determines every newline of this template.
BLOCKS = """\
{# A comment on a line of its own leaves nothing. #}
{% macro turn(role, text) %}
[{{ role | upper }}] {{ text }}
{% endmacro %}
{% set counts = namespace(user=0, other=0) %}
    {% for message in messages %}
        {% if message.role == 'user' %}
            {% set counts.user = counts.user + 1 %}
        {% else %}
            {% set counts.other = counts.other + 1 %}
        {% endif %}
{{ turn(message.role, message.content | replace('\\n', ' / ')) }}
        {%- if not loop.last %} --
{% endif %}
    {% endfor %}

user {{ counts.user }}, other {{ counts.other }}; first: {{ messages[0].content | default('none', true) | trim }};
roles: {{ messages | map(attribute='role') | join(',') }}; users: {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{% if add_generation_prompt %}
[ASSISTANT] {% endif %}
"""

# Break and continue (the loopcontrols extension), string methods, slices, and iteration over dictionaries.
METHODS = """\
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.content == 'STOP' %}{% break %}{% endif %}
    {{- message.role.capitalize() ~ ': ' ~ message.content.strip() ~ '\\n' }}
    {%- for key, value in message.items() if key not in ('role', 'content') %}
        {{- '  ' ~ key ~ '=' ~ value | tojson ~ '\\n' }}
    {%- endfor %}
{%- endfor %}
{{- 'last=' ~ messages[-1].content[:5] ~ ', ' ~ messages[-1]['role'].upper() ~ ', n=' ~ messages | length }}
{{- ', year=' ~ strftime_now('%Y') ~ ', ' ~ strftime_now('%H:%M:%S %A') }}
{{- ', missing=' ~ (messages[0].name if messages[0].name is defined else 'no') ~ '\\n' }}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif -%}
"""

TEMPLATES = {"headers": HEADERS, "chatml": CHATML, "chatml-tools": CHATML_TOOLS, "inst": INST, "turns": TURNS,
             "blocks": BLOCKS, "methods": METHODS}


# Cases whose content is a list, only for templates that check its type. Others would print Python's repr.
LISTS, TAKES_LISTS = {"content parts", "image part"}, {"turns", "chatml-tools", "skein-7m"}


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city: <now> & \"soon\", it's °C",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "e.g. Zürich"}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}}
CALL = {"type": "function", "id": "call_1", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}
CONVERSATIONS = {
    "one turn": dict(messages=say(("user", "Hello")), add_generation_prompt=True),
    "without generation prompt": dict(messages=say(("user", "Hello"), ("assistant", "Hi!"))),
    "system": dict(messages=say(("system", "You are terse."), ("user", "What does os.path.join do?")), add_generation_prompt=True),
    "several turns": dict(messages=say(
        ("system", "Be kind."), ("user", "1 + 1?"), ("assistant", "2"), ("user", "And 2 + 2?"), ("assistant", "4"), ("user", "Thanks!")),
        add_generation_prompt=True),
    "whitespace": dict(messages=say(("user", "  leading, trailing \n\n"), ("assistant", "\n ok \t"), ("user", "a\n\n  b")), add_generation_prompt=True),
    "unicode": dict(messages=say(("user", "你好 👩‍👩‍👧 naïve \u202e \x00")), add_generation_prompt=True),
    "markup": dict(messages=say(("user", "<b>&amp; \"quotes\" 'single' {{ braces }} {% raw %} </s> <|im_end|>")), add_generation_prompt=True),
    "empty content": dict(messages=say(("user", "")), add_generation_prompt=True),
    "two users in a row": dict(messages=say(("user", "one"), ("user", "two")), add_generation_prompt=True),
    "starts with assistant": dict(messages=say(("assistant", "Yes?"), ("user", "Hi")), add_generation_prompt=True),
    "unknown role": dict(messages=say(("user", "Hi"), ("oracle", "42")), add_generation_prompt=True),
    "late system": dict(messages=say(("user", "Hi"), ("system", "Be brief."), ("user", "Well?")), add_generation_prompt=True),
    "stop word": dict(messages=say(("user", "go"), ("assistant", "STOP"), ("user", "again")), add_generation_prompt=True),
    "thought": dict(messages=say(("user", "q1"), ("assistant", "<think>\nold\n</think>\n\na1"), ("user", "q2"),
                                 ("assistant", "<think>\nnew\n</think>\n\na2"))),
    "tools": dict(messages=say(("system", "Use tools."), ("user", "Weather in Zürich?")), tools=[WEATHER], add_generation_prompt=True),
    "tool call": dict(messages=[
        *say(("user", "Weather?")), {"role": "assistant", "content": "", "tool_calls": [CALL]},
        *say(("tool", "{\"celsius\": 21.5}"), ("tool", "sunny")), *say(("assistant", "21.5 °C and sunny."))], tools=[WEATHER]),
    "two tool calls": dict(messages=[*say(("user", "Weather?")), {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]),
    "content parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": " part one "}, {"type": "text", "text": "part two"}]}],
                          add_generation_prompt=True),
    "image part": dict(messages=[{"role": "user", "content": [{"type": "image"}]}], add_generation_prompt=True),
    "template arguments": dict(messages=say(("user", "Hi")), add_generation_prompt=True, enable_thinking=False, date_string="1 Jan 2000"),
    "named user": dict(messages=[{"role": "user", "content": "Hi", "name": "Ann", "extra": {"b": [1, 2.5, None, True], "a": "é<"}}],
                       add_generation_prompt=True),
}


def render(template: str, tokens: dict, arguments: dict) -> dict:
    """{"expected": text}, or {"error": message} if the template refused or failed."""
    given = {"add_generation_prompt": False, "tools": None, "documents": None} | tokens | arguments
    try:
        return {"expected": _compile_jinja_template(template).render(strftime_now=NOW.strftime, **given)}
    except Exception as error:  # noqa: BLE001, whatever Python raises in a template
        return {"error": str(error)}


def make():
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    (without_tools,) = [entry["template"] for entry in config["chat_template"] if entry["name"] == "default"]
    everything = {"skein-7m": (without_tools, config["bos_token"], config["eos_token"])}
    everything |= {name: (template, "<s>", "</s>") for name, template in TEMPLATES.items()}
    out, errors = [], 0
    for name, (template, bos, eos) in everything.items():
        cases = []
        for case, arguments in CONVERSATIONS.items():
            if case in LISTS and name not in TAKES_LISTS:
                continue
            result = render(template, {"bos_token": bos, "eos_token": eos}, arguments)
            errors += "error" in result
            cases.append({"name": case} | result)
        out.append({"name": name, "template": template, "bos_token": bos, "eos_token": eos, "cases": cases})
    golden = {"now": NOW.isoformat(), "conversations": CONVERSATIONS, "templates": out}
    (HERE / "chat_templates.json").write_text(json.dumps(golden, indent=0, ensure_ascii=False) + "\n")
    print(f"chat_templates.json: {len(out)} templates, {sum(len(t['cases']) for t in out)} cases, {errors} of them errors")
