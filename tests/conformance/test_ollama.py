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


def test_json_without_a_schema(client):
    parts = list(client.generate(model=MODEL, prompt="JSON", format="json", options=OPTIONS | {"num_predict": 400}, stream=True))
    text = "".join(part.response for part in parts)
    assert parts[-1].done_reason == "length" or isinstance(json.loads(text), dict), text


def test_ollamas_own_defaults_are_accepted(client):
    """Its client and the programs above it send these values even if nobody has chosen them."""
    options = {"repeat_last_n": 64, "repeat_penalty": 1.1, "stop": [""], "num_ctx": 4096, "num_thread": 4, "seed": 0, "num_predict": -1}
    whole = client.generate(model=MODEL, prompt="import ", options=options, keep_alive="5m")
    assert whole.done_reason in ("stop", "length")
    assert client.generate(model=MODEL, prompt="", keep_alive=0).done_reason == "unload"
    assert client.generate(model=MODEL).done_reason == "load"


def test_an_answer_as_long_as_the_context_ends_with_it(client):
    limit = client.show(MODEL).modelinfo["llama.context_length"]
    whole = client.generate(model=MODEL, prompt="x", options={"num_predict": 10**6, "temperature": 0})
    assert whole.done_reason in ("stop", "length") and whole.prompt_eval_count + whole.eval_count <= limit


def test_what_the_model_cannot_do_says_so(client):
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat(model=MODEL, messages=MESSAGES, think=True)
    assert refused.value.status_code == 400


def test_the_shipped_model_sees_tools_and_answers_with_text(client):
    def add(a: int, b: int) -> int:
        """Adds two numbers."""

    options = {"temperature": 0, "num_predict": 20}
    seen, unseen = (client.chat(model=MODEL, messages=MESSAGES, tools=tools, options=options) for tools in ([add], None))
    assert seen.message.content and seen.prompt_eval_count > unseen.prompt_eval_count


def test_embeddings_say_that_there_are_none(client):
    for ask in (client.embed, client.embeddings):
        with pytest.raises(ollama.ResponseError) as refused:
            ask(MODEL, "text")
        assert refused.value.status_code in (400, 404, 501) and refused.value.error


def test_lists_and_shows(client):
    (listed,) = client.list().models
    (running,) = client.ps().models
    assert listed.digest == running.digest and len(listed.digest) == 64 and int(listed.digest, 16) >= 0
    assert running.expires_at and running.context_length == client.show(MODEL).modelinfo["llama.context_length"]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert [model.model for model in client.list().models] == [MODEL]
    assert client.show(MODEL).modelinfo["llama.context_length"] > 0


def test_an_unknown_model_is_404_and_names_the_served_one(client):
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat(model="nope", messages=MESSAGES)
    assert refused.value.status_code == 404 and MODEL in refused.value.error
