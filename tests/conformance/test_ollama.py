"""The official Ollama client, as a user would call it."""

import json

import ollama
import pytest

MODEL = "skein-7m"
OPTIONS = {"temperature": 0, "num_predict": 12, "num_ctx": 512}
MESSAGES = [{"role": "user", "content": "Write a loop"}]


@pytest.fixture(scope="session")
def client(cluster):
    return ollama.Client(host=f"http://{cluster.address}")


def test_chat_whole_and_streamed(client):
    whole = client.chat(model=MODEL, messages=MESSAGES, options=OPTIONS)
    assert whole.done and whole.eval_count <= 12 and whole.prompt_eval_count > 0
    parts = list(client.chat(model=f"{MODEL}:latest", messages=MESSAGES, options=OPTIONS, stream=True))
    assert whole.message.content and "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done_reason in ("stop", "length")


def test_generate(client):
    assert client.generate(model=MODEL, prompt="import ", raw=True, options=OPTIONS).response


def test_a_schema_shapes_the_answer(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    whole = client.chat(model=MODEL, messages=MESSAGES, format=schema, options=OPTIONS | {"num_predict": 200})
    assert list(json.loads(whole.message.content)) == ["n"]
    whole = client.generate(model=MODEL, prompt="A number", format=schema, options=OPTIONS | {"num_predict": 10**6})
    assert list(json.loads(whole.response)) == ["n"]


def test_what_the_model_cannot_do_says_so(client):
    def add(a: int, b: int) -> int:
        """Adds two numbers."""

    for extra in ({"think": True}, {"tools": [add]}):
        with pytest.raises(ollama.ResponseError) as refused:
            client.chat(model=MODEL, messages=MESSAGES, **extra)
        assert refused.value.status_code == 400


def test_lists_and_shows(client):
    assert [model.model for model in client.ps().models] == [MODEL]
    assert [model.model for model in client.list().models] == [MODEL]
    assert client.show(MODEL).modelinfo["llama.context_length"] > 0


def test_an_unknown_model_is_404_and_names_the_served_one(client):
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat(model="nope", messages=MESSAGES)
    assert refused.value.status_code == 404 and MODEL in refused.value.error
