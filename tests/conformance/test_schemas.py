"""Schemas as Pydantic writes them, which do not close their objects: `strict`, and the server's two switches.

Instructor, agno and function tools send such schemas as they are, without `strict`. A small model then
invents properties until `max_tokens`.
"""

import json

import anthropic
import ollama
import openai
import pydantic
import pytest

from running import Cluster

MODEL = "skein-7m"
MESSAGES = [{"role": "user", "content": "JSON"}]


class Inner(pydantic.BaseModel):
    deep: bool


class Mood(pydantic.BaseModel):
    happy: bool
    inner: Inner


SCHEMA = Mood.model_json_schema()


def test_pydantics_schema_is_open():
    assert "additionalProperties" not in json.dumps(SCHEMA)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    running = Cluster("--no-structured-outputs-additional-properties", "--no-structured-outputs-whitespace")
    yield running
    running.end()


def chat(cluster, **extra):
    client = openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key="unused", max_retries=0)
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=600, **extra)
    return answer.choices[0]


def check_closed(text):
    assert Mood.model_validate_json(text, extra="forbid"), text


def test_strict_closes_the_objects_of_a_request(cluster):
    for seed in range(5):
        asked = {"type": "json_schema", "json_schema": {"name": "mood", "strict": True, "schema": SCHEMA}}
        choice = chat(cluster, response_format=asked, seed=seed, temperature=1)
        assert choice.finish_reason == "stop"
        check_closed(choice.message.content)


def test_without_strict_an_object_may_have_other_properties(cluster):
    """The control: else the tests of the switches would pass without the switches."""
    asked = {"type": "json_schema", "json_schema": {"name": "mood", "schema": SCHEMA}}
    answers = [chat(cluster, response_format=asked, seed=seed, temperature=1) for seed in range(5)]
    assert any(choice.finish_reason == "length" or json.loads(choice.message.content).keys() > Mood.model_fields.keys() for choice in answers)


def test_the_switches_close_the_schemas_of_every_api_and_leave_no_blanks(closed):
    base = f"http://{closed.address}"
    plain = {"type": "json_schema", "json_schema": {"name": "mood", "schema": SCHEMA}}
    texts = [chat(closed, response_format=plain).message.content, chat(closed, extra_body={"guided_json": SCHEMA}).message.content]
    responses = openai.OpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0).responses
    texts.append(responses.create(
        model=MODEL, input="JSON", max_output_tokens=600, text={"format": {"type": "json_schema", "name": "mood", "schema": SCHEMA}}).output_text)
    claude = anthropic.Anthropic(base_url=base, api_key="unused", max_retries=0)
    message = claude.messages.create(
        model=MODEL, max_tokens=600, messages=MESSAGES, extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}})
    texts.append(message.content[0].text)
    told = ollama.Client(host=base).chat(model=MODEL, messages=MESSAGES, format=SCHEMA, options={"num_predict": 600})
    texts.append(told.message.content)
    for text in texts:
        check_closed(text)
        assert text == json.dumps(json.loads(text), separators=(",", ":"))


def test_the_sdks_own_parsing_of_a_model(cluster):
    client = openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key="unused", max_retries=0)
    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Mood, max_tokens=600)
    assert isinstance(parsed.choices[0].message.parsed, Mood)
    assert isinstance(client.responses.parse(model=MODEL, input="JSON", text_format=Mood, max_output_tokens=600).output_parsed, Mood)
