"""The official openai SDK, as a user would call it."""

import concurrent.futures
import http.client
import math
import pathlib
import time

import openai
import pytest

MODEL = "skein-7m"


@pytest.fixture(scope="session")
def client(cluster):
    return openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key="unused", max_retries=0)


def test_models(client):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL).max_model_len > 0
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_completion_and_usage(client):
    answer = client.completions.create(model=MODEL, prompt="import ", max_tokens=8, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_completion_of_lists(client):
    texts = client.completions.create(model=MODEL, prompt=["def a", "class B"], max_tokens=4, n=2, seed=1, temperature=1)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    ids = client.completions.create(model=MODEL, prompt=[[300, 301], [302]], max_tokens=4)
    assert len(ids.choices) == 2


def test_echo_with_logprobs_scores_the_prompt(client):
    answer = client.completions.create(model=MODEL, prompt="import os", max_tokens=1, echo=True, logprobs=2, temperature=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith("import os")
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert logprobs.text_offset == sorted(logprobs.text_offset)


def test_the_readmes_program(cluster, capsys):
    program = pathlib.Path(__file__).parents[2] / "docs/examples/ask.py"
    exec(program.read_text(encoding="utf-8").replace("127.0.0.1:8000", cluster.address))
    assert "def add(a, b):" in capsys.readouterr().out


def test_chat(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What does os.getcwd do?"}], max_completion_tokens=24, seed=3
    )
    assert answer.choices[0].message.role == "assistant"
    assert isinstance(answer.choices[0].message.content, str)
    assert answer.usage.completion_tokens <= 24


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=5, logprobs=True, top_logprobs=3, temperature=0
    )
    content = answer.choices[0].logprobs.content
    assert 1 <= len(content) <= 5
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert math.isclose(entry.top_logprobs[0].logprob, entry.logprob, abs_tol=1e-6), "greedy takes the best"


def test_logprobs_of_responses(client):
    asked = dict(model=MODEL, input="Hello", max_output_tokens=5, top_logprobs=3, include=["message.output_text.logprobs"], temperature=0)
    whole = client.responses.create(**asked)
    (part,) = whole.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == part.text
    for entry in part.logprobs:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert math.isclose(entry.top_logprobs[0].logprob, entry.logprob, abs_tol=1e-6), "greedy takes the best"
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    streamed = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert streamed == [entry.token for entry in part.logprobs]
    assert events[-1].response.output[0].content[0].logprobs == part.logprobs
    unasked = client.responses.create(model=MODEL, input="Hello", max_output_tokens=5)
    assert not unasked.output[0].content[0].logprobs


def test_a_response_continues_another(client):
    first = client.responses.create(model=MODEL, input="def add(a, b):", max_output_tokens=6, temperature=0)
    assert first.store and first.previous_response_id is None
    assert client.responses.retrieve(first.id) == first
    asked = dict(model=MODEL, max_output_tokens=6, temperature=0)
    second = client.responses.create(input="And now?", previous_response_id=first.id, **asked)
    history = [{"role": "user", "content": "def add(a, b):"}, *first.output, {"role": "user", "content": "And now?"}]
    whole = client.responses.create(input=history, store=False, **asked)
    assert (second.output_text, second.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
    assert not whole.store
    with client.responses.stream(input="And now?", previous_response_id=first.id, **asked) as stream:
        streamed = list(stream)[-1].response
    assert streamed.output_text == second.output_text and streamed.previous_response_id == first.id
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.type for item in listed] == ["message"] * 3
    assert [item.content[0].text for item in listed] == ["def add(a, b):", first.output_text, "And now?"]
    refers = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "And now?"}]
    assert client.responses.create(input=refers, **asked).usage.input_tokens < second.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="More", previous_response_id=first.id, **asked)
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)


def test_a_response_is_made_in_the_background(client):
    asked = dict(model=MODEL, input="def add(a, b):", max_output_tokens=40, temperature=0)
    response = client.responses.create(background=True, **asked)
    assert response.status == "queued" and response.background
    end = time.monotonic() + 60
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < end
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    assert response.output_text == client.responses.create(**asked).output_text
    assert client.responses.cancel(response.id) == response, "it has ended"
    long = client.responses.create(model=MODEL, input="x", max_output_tokens=400, background=True, extra_body={"ignore_eos": True})
    ended = client.responses.cancel(long.id)
    # It may have ended before it was cancelled.
    assert ended.status in ("cancelled", "completed", "incomplete") and client.responses.retrieve(long.id) == ended
    with pytest.raises(openai.BadRequestError):
        client.responses.create(background=True, store=False, **asked)


def test_a_refusal_in_the_history_is_read(client):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "refusal": "I cannot."}, {"role": "user", "content": "Why?"}]
    said = client.chat.completions.create(model=MODEL, messages=turns, max_tokens=4).usage.prompt_tokens
    turns[1] = {"role": "assistant", "content": "I cannot."}
    assert said == client.chat.completions.create(model=MODEL, messages=turns, max_tokens=4).usage.prompt_tokens


def test_a_connection_without_a_request_is_closed_after_the_time_that_is_set(start_cluster):
    cluster = start_cluster("--workers", "1", "--timeout-keep-alive", "1s")
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().read()
    assert connection.sock.recv(1) == b"", "the server sends nothing more and closes"


def test_streaming_equals_the_whole(client):
    request = dict(model=MODEL, messages=[{"role": "user", "content": "Write a loop"}], max_tokens=40, seed=11, temperature=0.8)
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].choices == []
    assert len({chunk.id for chunk in chunks}) == 1


def test_stop_strings(client):
    free = client.completions.create(model=MODEL, prompt="def f(x):\n", max_tokens=60, temperature=0).choices[0].text
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    cut = client.completions.create(model=MODEL, prompt="def f(x):\n", max_tokens=60, temperature=0, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == free[: free.index(stop)]


def test_allowed_and_bad_words(client):
    ask = lambda **extra: client.completions.create(
        model=MODEL, prompt="def add(a, b):\n", max_tokens=24, temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True} | extra,
    ).choices[0]  # fmt: skip
    allowed = list(range(300, 340))
    assert set(ask(allowed_token_ids=allowed).token_ids) <= set(allowed)
    # Bans each word of the answer in turn; some are one token, some several.
    plain = ask()
    words = plain.text.split()
    assert words
    for word in dict.fromkeys(words[:4]):
        assert f" {word} " not in f" {ask(bad_words=[word]).text} "
    with pytest.raises(openai.BadRequestError, match="allowed_token_ids"):
        ask(allowed_token_ids=[10_000_000])
    with pytest.raises(openai.BadRequestError, match="bad_words"):
        ask(bad_words=[""])


def test_cached_tokens_are_reported(client):
    request = dict(model=MODEL, prompt="class Cached:\n    pass\n" * 30, max_tokens=2, temperature=0)
    first = client.completions.create(**request)
    second = client.completions.create(**request)
    assert second.usage.prompt_tokens_details.cached_tokens >= second.usage.prompt_tokens - 17
    assert first.choices[0].text == second.choices[0].text


def test_errors(client):
    with pytest.raises(openai.NotFoundError) as wrong_model:
        client.completions.create(model="nope", prompt="x")
    assert wrong_model.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="word " * 9000, max_tokens=4)
    assert "this model's maximum context length is" in str(too_long.value).lower()
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=MODEL, prompt="x", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as not_a_number:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], top_p="high")
    assert not_a_number.value.param == "top_p"


def test_overload_is_429_with_retry_headers(start_cluster):
    cluster = start_cluster("--workers", "1", "--max-num-queued-reqs", "2")
    client = openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key="unused", max_retries=0)

    def ask(_):
        try:
            client.completions.create(model=MODEL, prompt="x", max_tokens=300, extra_body={"ignore_eos": True})
            return None
        except openai.RateLimitError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        refused = [error for error in pool.map(ask, range(16)) if error is not None]
    assert refused, "16 requests at once against a bound of 2 were all taken"
    headers = refused[0].response.headers
    assert int(headers["retry-after-ms"]) > 0 and int(headers["retry-after"]) >= 1
    assert headers["x-should-retry"] == "true"


def test_api_key(start_cluster):
    cluster = start_cluster("--workers", "1", "--api-key", "sesame")
    wrong = openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as error:
        wrong.models.list()
    assert error.value.code == "invalid_api_key"
    right = openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key="sesame", max_retries=0)
    assert right.models.list().data
