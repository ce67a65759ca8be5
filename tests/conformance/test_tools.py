"""Tools, Responses and Messages through the official SDKs and LangChain. The shipped model was not trained on
tools; it makes required calls because the grammar forces it to."""

import json
import pathlib

import anthropic
import langchain_openai
import ollama
import openai
import pytest

from running import Cluster

MODEL = "skein-7m"
TEMPLATE = pathlib.Path(__file__).with_name("hermes.jinja")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
NOTHING_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
USER = [{"role": "user", "content": "Weather in Oslo?"}]


@pytest.fixture(scope="module")
def server():
    running = Cluster("--chat-template", str(TEMPLATE))
    yield running
    running.end()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=f"http://{server.address}", api_key="unused", max_retries=0)


def check_call(name, arguments):
    assert name == "get_weather"
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert arguments["city"] in ("Rome", "Oslo") and set(arguments) <= {"city", "days"}
    assert 1 <= arguments.get("days", 1) <= 9


def test_chat_required_named_and_the_next_turn(client):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = client.chat.completions.create(
            model=MODEL, messages=USER, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_tokens=200, seed=1, temperature=1,
            extra_body=NOTHING_THOUGHT)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        (call,) = choice.message.tool_calls
        check_call(call.function.name, call.function.arguments)
        turns = [*USER, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        after = client.chat.completions.create(model=MODEL, messages=turns, tools=[TOOL], max_tokens=8, extra_body=NOTHING_THOUGHT)
        assert after.choices[0].finish_reason in ("stop", "length")


def test_chat_streamed_calls_equal_the_whole(client):
    asked = dict(model=MODEL, messages=USER, tools=[TOOL], tool_choice="required", max_tokens=300, seed=5, temperature=1, extra_body=NOTHING_THOUGHT)
    # The ids of calls are derived from the request's id.
    whole = client.chat.completions.create(**asked, extra_headers={"Idempotency-Key": "same-calls"}).choices[0]
    calls = {}
    for chunk in client.chat.completions.create(**asked, stream=True, extra_headers={"Idempotency-Key": "same-calls"}):
        for call in chunk.choices[0].delta.tool_calls or []:
            known = calls.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
            known["arguments"] += call.function.arguments or ""
        finish = chunk.choices[0].finish_reason
    assert finish == whole.finish_reason
    assert [(call["id"], call["name"], call["arguments"]) for call in calls.values()] == [
        (call.id, call.function.name, call.function.arguments) for call in whole.message.tool_calls]


def test_the_sdks_own_accumulator(client):
    with client.chat.completions.stream(
        model=MODEL, messages=USER, tools=[TOOL | {"function": TOOL["function"] | {"strict": True}}], tool_choice="required", max_tokens=200, seed=2,
        parallel_tool_calls=False, extra_body=NOTHING_THOUGHT) as stream:
        final = None
        for event in stream:
            if event.type == "chunk" and event.chunk.choices and event.chunk.choices[0].finish_reason:
                final = event.chunk.choices[0].finish_reason
    assert final == "tool_calls"


def test_responses(client):
    tool = {"type": "function", "strict": True, **TOOL["function"]}
    asked = dict(model=MODEL, input="Weather?", tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, temperature=1,
                 extra_body=NOTHING_THOUGHT | {"seed": 3}, store=False)
    whole = client.responses.create(**asked)
    (call,) = whole.output
    assert call.type == "function_call" and whole.status == "completed"
    check_call(call.name, call.arguments)
    with client.responses.stream(**{key: value for key, value in asked.items()}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert final.output[0].arguments == call.arguments
    after = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "Weather?"}, call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        max_output_tokens=8, extra_body=NOTHING_THOUGHT)
    assert after.status in ("completed", "incomplete") and after.usage.output_tokens <= 8
    text = client.responses.create(
        model=MODEL, input="x", max_output_tokens=100, extra_body=NOTHING_THOUGHT,
        text={"format": {"type": "json_schema", "name": "mood", "strict": True, "schema": {"type": "object", "properties": {"mood": {"enum": ["glad", "sad"]}}, "required": ["mood"], "additionalProperties": False}}})
    assert json.loads(text.output_text)["mood"] in ("glad", "sad")
    with pytest.raises(openai.BadRequestError, match="Previous response with id .resp_1. not found"):
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")


def test_messages(claude):
    tool = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
    asked = dict(model=MODEL, max_tokens=200, messages=USER, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True}, extra_body={"seed": 4, "temperature": 1.0})
    whole = claude.messages.create(**asked)
    (block,) = whole.content
    assert whole.stop_reason == "tool_use" and block.type == "tool_use"
    check_call(block.name, block.input)
    with claude.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == block.input and final.stop_reason == "tool_use"
    turns = [*USER, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}]}]
    after = claude.messages.create(model=MODEL, max_tokens=8, messages=turns, tools=[tool], system=[{"type": "text", "text": "x-anthropic-billing-header: a=1"}, {"type": "text", "text": "Be brief."}])
    assert after.usage.output_tokens <= 8
    counted = claude.messages.count_tokens(model=MODEL, messages=USER, tools=[tool])
    assert counted.input_tokens > claude.messages.count_tokens(model=MODEL, messages=USER).input_tokens > 0
    with claude.messages.stream(model=MODEL, max_tokens=12, messages=USER) as stream:
        text = "".join(stream.text_stream)
    assert text
    with pytest.raises(anthropic.BadRequestError, match="image"):
        claude.messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}])


@pytest.fixture(scope="module")
def wide_claude():
    """A server with room for a coding client's prompts; its answers do not matter."""
    running = Cluster("--device", "fake", "--chat-template", str(TEMPLATE))
    yield anthropic.Anthropic(base_url=f"http://{running.address}", api_key="unused", max_retries=0)
    running.end()


def test_two_turns_share_their_prefix(wide_claude):
    """A coding client's second turn finds its first in the cache, though its billing block has changed."""
    tools = [{"name": f"tool_{at}", "description": "Does one of many things. " * 20, "input_schema": SCHEMA} for at in range(18)]

    def ask(turn, messages):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={turn};"}, {"type": "text", "text": "Be brief, and keep to the rules. " * 120}]
        return wide_claude.messages.create(model=MODEL, max_tokens=16, system=system, messages=messages, tools=tools)

    first = [{"role": "user", "content": "Fix the bug. " * 200}]
    answer = ask(1, first)
    said = "".join(block.text for block in answer.content if block.type == "text")
    usage = ask(2, [*first, {"role": "assistant", "content": said or "Done."}, {"role": "user", "content": "Go on."}]).usage
    prompt = usage.cache_read_input_tokens + usage.input_tokens
    assert prompt > 6500 and usage.cache_read_input_tokens >= 0.99 * prompt, usage


def test_allowed_tools_and_free_text_tools(client):
    other = {"type": "function", "function": {"name": "other", "parameters": SCHEMA}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}
    for seed in range(4):
        answer = client.chat.completions.create(
            model=MODEL, messages=USER, tools=[other, TOOL], tool_choice=allowed, parallel_tool_calls=False, max_tokens=200, seed=seed, temperature=1,
            extra_body=NOTHING_THOUGHT)
        (call,) = answer.choices[0].message.tool_calls
        check_call(call.function.name, call.function.arguments)
    patch = {"type": "custom", "name": "apply_patch", "description": "Edits files", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
    asked = dict(model=MODEL, input="Patch!", tools=[patch, {"type": "web_search"}], tool_choice={"type": "custom", "name": "apply_patch"}, parallel_tool_calls=False,
                 max_output_tokens=300, extra_body=NOTHING_THOUGHT | {"seed": 1}, store=False)
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.custom_tool_call_input.done" in kinds
    call = final.output[0]
    assert call.type == "custom_tool_call" and call.name == "apply_patch" and isinstance(call.input, str)
    again = [{"role": "user", "content": "Patch!"}, call.model_dump(exclude_none=True), {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}]
    assert client.responses.create(model=MODEL, input=again, tools=[patch], max_output_tokens=8, extra_body=NOTHING_THOUGHT).usage.output_tokens <= 8


def test_langchain_tools(server):
    chat = langchain_openai.ChatOpenAI(
        base_url=f"http://{server.address}/v1", api_key="unused", model=MODEL, temperature=1, seed=6, max_tokens=200, max_retries=0, extra_body=NOTHING_THOUGHT)
    bound = chat.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
    (call,) = bound.invoke("Weather?").tool_calls
    check_call(call["name"], call["args"])
    streamed = None
    for chunk in bound.stream("Weather?"):
        streamed = chunk if streamed is None else streamed + chunk
    check_call(streamed.tool_calls[0]["name"], streamed.tool_calls[0]["args"])


def test_ollamas_client_offers_tools_and_hands_results_back(server):
    client = ollama.Client(host=f"http://{server.address}")
    assert {"tools", "thinking"} <= set(client.show(MODEL).capabilities)
    turns = [*USER, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]},
             {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
    asked = dict(model=MODEL, messages=turns, tools=[TOOL], think=False, options={"num_predict": 8, "temperature": 0})
    whole = client.chat(**asked)
    assert whole.done_reason in ("stop", "length") and whole.message.thinking is None
    assert "".join(part.message.content for part in client.chat(**asked, stream=True)) == whole.message.content
    unasked = client.chat(**asked | {"messages": USER, "tools": None})
    assert whole.prompt_eval_count > unasked.prompt_eval_count + 20, "tools, call and result are in the prompt"


def test_ollamas_client_gets_calls_whole_and_streamed(start_cluster):
    """Its API has no `tool_choice`, but with `format` and tools an answer is calls or text of the format.

    The client does not send `additionalProperties`, so the server closes the objects.
    """
    cluster = start_cluster("--workers", "1", "--chat-template", str(TEMPLATE), "--no-structured-outputs-additional-properties",
                            "--no-structured-outputs-whitespace")
    client = ollama.Client(host=f"http://{cluster.address}")
    kinds = set()
    for seed in range(8):
        asked = dict(model=MODEL, messages=USER, tools=[TOOL], think=False, format={"enum": ["glad", "sad"]},
                     options={"num_predict": 200, "temperature": 2.0, "seed": seed})
        whole = client.chat(**asked)
        parts = list(client.chat(**asked, stream=True))
        calls = [call for part in parts for call in part.message.tool_calls or []]
        assert calls == list(whole.message.tool_calls or []) and parts[-1].done_reason == whole.done_reason
        assert "".join(part.message.content or "" for part in parts) == (whole.message.content or "")
        for call in calls if whole.done_reason == "stop" else calls[:-1]:
            kinds.add(call.function.name)
            assert call.function.arguments["city"] in ("Rome", "Oslo")
            assert set(call.function.arguments) <= {"city", "days"}
    assert kinds == {"get_weather"}


def test_a_call_that_num_predict_cuts_is_not_made_without_its_arguments(server):
    """Ollama's clients run what is in `tool_calls`, whatever `done_reason` says."""
    client = ollama.Client(host=f"http://{server.address}")
    for num_predict in range(25, 40, 3):
        cut = client.chat(model=MODEL, messages=USER, tools=[TOOL], think=False, format={"enum": ["glad"]},
                          options={"num_predict": num_predict, "temperature": 2.0, "seed": 0})
        assert cut.done_reason == "length"
        assert all(call.function.arguments.get("city") for call in cut.message.tool_calls or [])


def test_ollamas_client_gets_reasoning_apart_from_the_answer(start_cluster):
    """The template opens the reasoning, because the shipped model does not; nor does it end it."""
    template = TEMPLATE.read_text("utf-8") + "{%- if enable_thinking is not defined or enable_thinking %}{{ '<think>\\n' }}{% endif -%}"
    cluster = start_cluster("--workers", "1", "--chat-template", template)
    client = ollama.Client(host=f"http://{cluster.address}")
    asked = dict(model=MODEL, messages=USER, options={"num_predict": 40, "seed": 1, "temperature": 1.0})
    for think in (True, None):
        whole = client.chat(**asked, think=think)
        parts = list(client.chat(**asked, think=think, stream=True))
        assert whole.message.thinking and not whole.message.content
        assert "".join(part.message.thinking or "" for part in parts) == whole.message.thinking
        generated = client.generate(model=MODEL, prompt="Weather in Oslo?", think=think, options=asked["options"])
        assert (generated.thinking, generated.response) == (whole.message.thinking, "")
    spoken = client.chat(**asked, think=False, format={"enum": ["glad", "sad"]})
    assert spoken.message.thinking is None and json.loads(spoken.message.content) in ("glad", "sad")
    begun = [*USER, {"role": "assistant", "thinking": "I know it.", "content": "It is"}]
    continued = client.chat(**asked | {"messages": begun}, think=False)
    assert continued.message.thinking is None and continued.message.content


def test_a_tool_that_anthropics_servers_run_is_left_out_beside_others(claude):
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "get_weather", "input_schema": SCHEMA}]
    answer = claude.messages.with_raw_response.create(model=MODEL, max_tokens=8, messages=USER, tools=tools)
    assert answer.headers["x-ignored-params"] == "tools.web_search_20250305"


def test_a_strict_function_with_an_open_schema_is_closed(client):
    schema = {key: value for key, value in SCHEMA.items() if key != "additionalProperties"}
    function = {"name": "get_weather", "parameters": schema, "strict": True}
    for seed in range(4):
        answer = client.chat.completions.create(
            model=MODEL, messages=USER, tools=[{"type": "function", "function": function}], tool_choice="required", parallel_tool_calls=False,
            max_tokens=400, seed=seed, temperature=1, extra_body=NOTHING_THOUGHT)
        (call,) = answer.choices[0].message.tool_calls
        check_call(call.function.name, call.function.arguments)


def test_calls_without_arguments_in_the_history(client):
    for arguments in ("", " ", "null", "{}"):
        call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        turns = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
        answer = client.chat.completions.create(model=MODEL, messages=turns, tools=[TOOL], max_tokens=4, extra_body=NOTHING_THOUGHT)
        assert answer.usage.completion_tokens <= 4


def test_a_named_function_is_called_once(client):
    """vLLM allows one object of the function's schema. Small models repeat a call until `max_tokens`."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    for seed in range(6):
        answer = client.chat.completions.create(
            model=MODEL, messages=USER, tools=[TOOL], tool_choice=named, max_tokens=300, seed=seed, temperature=1, extra_body=NOTHING_THOUGHT)
        assert len(answer.choices[0].message.tool_calls) == 1
