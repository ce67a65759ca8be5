"""The official anthropic SDK: models, errors and what answers are called. Tools are in test_tools.py."""

import anthropic
import pytest

MODEL = "skein-7m"
MESSAGES = [{"role": "user", "content": "Write a loop"}]


@pytest.fixture(scope="session")
def client(cluster):
    return anthropic.Anthropic(base_url=f"http://{cluster.address}", api_key="unused", max_retries=0)


def test_models_have_anthropics_shape(client):
    page = client.models.list(limit=1)
    (model,) = page.data
    assert (model.id, model.type, model.display_name, model.created_at.year > 2000) == (MODEL, "model", MODEL, True)
    assert (page.first_id, page.last_id, page.has_more) == (MODEL, MODEL, False)
    assert [model.id for model in client.models.list()] == [MODEL], "the SDK reads pages until has_more is false"
    assert client.models.retrieve(MODEL).type == "model"


def error_of(raised):
    assert raised.value.body["type"] == "error" and set(raised.value.body["error"]) >= {"type", "message"}
    return raised.value.body["error"]["type"], raised.value.body["error"]["message"]


def test_unknown_models_are_not_found_in_anthropics_form(client):
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.models.retrieve("nope")
    assert error_of(raised)[0] == "not_found_error"
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.messages.create(model="nope", max_tokens=8, messages=MESSAGES)
    kind, message = error_of(raised)
    assert kind == "not_found_error" and MODEL in message


def test_errors_name_anthropics_fields(client):
    bad = [
        (dict(tools=[{"name": "f", "type": "bash_20250124"}]), "tools[0]"),
        (dict(tool_choice={"type": "sometimes"}), "tool_choice"),
        (dict(max_tokens=0), "max_tokens"),
        (dict(stop_sequences=["x"] * 99), "stop_sequences"),
    ]
    for extra, named in bad:
        with pytest.raises(anthropic.BadRequestError) as raised:
            client.messages.create(**dict(model=MODEL, max_tokens=8, messages=MESSAGES) | extra)
        kind, message = error_of(raised)
        assert kind == "invalid_request_error" and named in message and "`function`" not in message, message


def test_an_answer_that_does_not_fit_says_so_in_the_sentence_that_clients_read(client):
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(model=MODEL, max_tokens=8192, messages=MESSAGES)
    assert "input length and `max_tokens` exceed context limit: " in error_of(raised)[1]


def test_a_tool_that_anthropics_servers_run_is_refused_if_it_is_the_only_one(client):
    """Claude Code takes the text of such an answer for what a search has found."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES, tools=[search])
    assert "web_search_20250305" in error_of(raised)[1]


def test_a_wrong_key_is_an_authentication_error(start_cluster):
    cluster = start_cluster("--workers", "1", "--api-key", "sesame")
    for wrong in (dict(api_key="wrong"), dict(auth_token="wrong")):
        with pytest.raises(anthropic.AuthenticationError) as raised:
            anthropic.Anthropic(base_url=f"http://{cluster.address}", max_retries=0, **wrong).messages.create(
                model=MODEL, max_tokens=8, messages=MESSAGES)
        assert error_of(raised)[0] == "authentication_error"
    for right in (dict(api_key="sesame"), dict(auth_token="sesame")):
        right = anthropic.Anthropic(base_url=f"http://{cluster.address}", max_retries=0, **right)
        assert right.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES).usage.output_tokens <= 8


def test_answers_have_the_id_that_the_sdk_reads(client):
    message = client.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES)
    assert message._request_id and message.id.startswith("msg_")


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_answer(client):
    begun = [*MESSAGES, {"role": "assistant", "content": "for i in"}]
    message = client.messages.create(model=MODEL, max_tokens=8, messages=begun)
    counted = client.messages.count_tokens(model=MODEL, messages=begun).input_tokens
    turn = client.messages.count_tokens(model=MODEL, messages=[*begun, MESSAGES[0]]).input_tokens
    assert message.usage.input_tokens == counted < turn
