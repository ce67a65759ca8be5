"""Tenants of a keys file, through the openai and anthropic SDKs: who gets in, limits, usage."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.request

import anthropic
import openai
import pytest

TENANTS = ["acme", "globex", "initech"]
REQUESTS = 200


class Keys:
    """A keys file that `skein keys` writes."""

    def __init__(self, directory: pathlib.Path):
        self.path = directory / "keys.toml"

    def new(self, tenant: str, *flags: str) -> str:
        made = subprocess.run(
            [os.environ["TEST_BINARY"], "keys", "new", "--tenant", tenant, "--file", str(self.path), *flags],
            capture_output=True, text=True, check=True,
        )
        key = made.stdout.strip()
        assert key not in self.path.read_text() and key not in made.stderr
        return key

    def remove(self, id: str) -> None:
        entries = self.path.read_text().split("[[keys]]")
        self.path.write_text("[[keys]]".join(entry for entry in entries if f'id = "{id}"' not in entry))


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


@pytest.fixture
def start(start_cluster, tmp_path, keys):
    def start(*flags: str):
        return start_cluster("--api-keys-file", str(keys.path), "--usage-log", str(tmp_path / "usage.jsonl"),
                             "--batch-dir", str(tmp_path / "batches"), "--workers", "1", "--threads", "1",
                             "--served-model-name", "test", *flags)

    return start


def client_of(cluster, key: str, **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key=key, **{"max_retries": 0} | options)


def complete(client: openai.OpenAI, tokens: int = 4, **options):
    options = {"prompt": "def main", "max_tokens": tokens} | options
    return client.completions.create(model="test", extra_body={"ignore_eos": True}, **options)


def metrics(cluster) -> str:
    with urllib.request.urlopen(f"http://{cluster.address}/metrics", timeout=10) as answer:
        return answer.read().decode()


def until(what: str, condition, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def test_wrong_expired_and_other_tenants_keys(keys, start):
    one, same, other = keys.new("acme"), keys.new("acme", "--id", "second"), keys.new("globex")
    expired = keys.new("acme", "--id", "old", "--expires", "2020-01-01T00:00:00Z")
    elsewhere = keys.new("acme", "--id", "elsewhere", "--models", "another-model")
    cluster = start()
    assert complete(client_of(cluster, one)).usage.completion_tokens == 4
    for key, told in [("sk-wrong", "Incorrect"), (one[:-1] + "x", "Incorrect"), (expired, "expired")]:
        with pytest.raises(openai.AuthenticationError, match=told):
            complete(client_of(cluster, key))
        with pytest.raises(anthropic.AuthenticationError, match=told):
            anthropic.Anthropic(base_url=f"http://{cluster.address}", api_key=key, max_retries=0).models.list()
    assert [model.id for model in client_of(cluster, one).models.list()] == ["test"]
    assert not list(client_of(cluster, elsewhere).models.list())
    with pytest.raises(openai.NotFoundError) as refused:
        complete(client_of(cluster, elsewhere))
    assert refused.value.code == "model_not_found"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
            "body": {"model": "test", "prompt": "x", "max_tokens": 2}}
    file = client_of(cluster, one).files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client_of(cluster, one).batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert client_of(cluster, same).files.retrieve(file.id).id == file.id
    assert client_of(cluster, same).batches.retrieve(batch.id).id == batch.id
    for read in [lambda: client_of(cluster, other).files.retrieve(file.id),
                 lambda: client_of(cluster, other).files.content(file.id),
                 lambda: client_of(cluster, other).batches.retrieve(batch.id),
                 lambda: client_of(cluster, other).batches.cancel(batch.id)]:
        with pytest.raises(openai.NotFoundError):
            read()
    until("the batch ends", lambda: client_of(cluster, one).batches.retrieve(batch.id).status == "completed")


def test_keys_change_under_load_and_nothing_is_lost(keys, start):
    stays = keys.new("acme", "--id", "stays")
    cluster = start()
    stop, failures, answers = threading.Event(), [], []

    def load():
        client = client_of(cluster, stays)
        while not stop.is_set():
            try:
                answers.append(complete(client, tokens=8).usage.completion_tokens)
            except openai.OpenAIError as error:
                failures.append(error)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(load) for _ in range(4)]
        try:
            for turn in range(3):
                key = keys.new("globex", "--id", f"turn-{turn}")
                until("the new key counts", lambda: works(cluster, key))
                keys.remove(f"turn-{turn}")
                until("the removed key does not", lambda: not works(cluster, key))
            good = keys.path.read_text()
            keys.path.write_text("[[keys]]\nid = 3\n")
            until("the bad file is told", lambda: re.search(r"^skein_keys_file_valid\S* 0$", metrics(cluster), re.M))
            assert works(cluster, stays)
            keys.path.write_text(good)
            until("the file is good again", lambda: re.search(r"^skein_keys_file_valid\S* 1$", metrics(cluster), re.M))
        finally:
            stop.set()
        for future in running:
            future.result()
    assert answers and not failures, failures[:3]
    assert set(answers) == {8}


def works(cluster, key: str) -> bool:
    try:
        client_of(cluster, key).models.list()
    except openai.AuthenticationError:
        return False
    return True


def test_limits_are_told_in_the_form_that_sdks_read(keys, start):
    key = keys.new("acme", "--id", "limited", "--requests-per-minute", "20", "--tokens-per-minute", "100000")
    cluster = start()
    client = client_of(cluster, key)
    raw = client.completions.with_raw_response.create(model="test", prompt="a", max_tokens=1)
    assert raw.headers["x-ratelimit-limit-requests"] == "20"
    assert raw.headers["x-ratelimit-limit-tokens"] == "100000"
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) > 90_000
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(1000):
            complete(client, tokens=1)
    headers, error = refused.value.response.headers, refused.value
    assert (error.code, error.type) == ("rate_limit_exceeded", "requests")
    assert headers["x-ratelimit-remaining-requests"] == "0" and headers["x-should-retry"] == "true"
    assert 0 < int(headers["retry-after-ms"]) <= 3000 and 1 <= int(headers["retry-after"]) <= 3
    # The SDK waits as long as it is told, and then there is room.
    assert complete(client_of(cluster, key, max_retries=5), tokens=1).usage.completion_tokens == 1
    messages = anthropic.Anthropic(base_url=f"http://{cluster.address}", api_key=key, max_retries=5).messages
    raw = messages.with_raw_response.create(
        model="test", max_tokens=2, messages=[{"role": "user", "content": "hi"}])
    assert raw.headers["anthropic-ratelimit-requests-limit"] == "20"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", raw.headers["anthropic-ratelimit-requests-reset"])


def test_usage_is_what_the_answers_say(keys, start, tmp_path):
    by_tenant = {tenant: keys.new(tenant, "--id", f"{tenant}-key") for tenant in TENANTS}
    cluster = start()
    clients = {tenant: client_of(cluster, key) for tenant, key in by_tenant.items()}

    def one(at: int):
        """The tenant, the request's id, and its usage; of a cancelled stream the events that came."""
        tenant, id = TENANTS[at % 3], f"request-{at}"
        options = {"prompt": f"def f{at % 7}(", "tokens": 3 + at % 5}
        headers = {"Idempotency-Key": id}
        if at % 5 == 0:
            stream = complete(clients[tenant], tokens=200, stream=True, prompt="x", extra_headers=headers)
            seen = sum(1 for _, _ in zip(stream, range(2)))
            stream.close()
            return tenant, id, None, seen
        if at % 2 == 0:
            stream = complete(clients[tenant], stream=True, stream_options={"include_usage": True},
                              extra_headers=headers, **options)
            return tenant, id, [event.usage for event in stream][-1], 0
        return tenant, id, complete(clients[tenant], extra_headers=headers, **options).usage, 0

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(REQUESTS)))
    log = tmp_path / "usage.jsonl"

    def lines():
        return [json.loads(line) for line in log.read_text().splitlines()]

    until("each request has a line", lambda: len(lines()) >= REQUESTS)
    by_id = {line["request"]: line for line in lines()}
    assert len(by_id) == len(lines()) == REQUESTS, "exactly one line each"
    for tenant, id, usage, seen in results:
        line = by_id[id]
        assert (line["tenant"], line["key"], line["model"]) == (tenant, f"{tenant}-key", "test")
        if usage is None:
            assert line["outcome"] in ("cancelled", "completed") and line["output_tokens"] >= seen
            continue
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        counts = (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"])
        assert counts == (usage.prompt_tokens, cached or 0, usage.completion_tokens), line
        assert line["outcome"] == "completed"
    assert any(line["outcome"] == "cancelled" for line in by_id.values())
    scrape = metrics(cluster)
    for tenant in TENANTS:
        own = [line for line in by_id.values() if line["tenant"] == tenant]
        for name in ("prompt", "cached", "output"):
            found = re.search(rf'^skein_tenant_{name}_tokens_total{{[^}}]*tenant="{tenant}"}} (\d+)$', scrape, re.M)
            assert int(found[1]) == sum(line[f"{name}_tokens"] for line in own), (tenant, name)
    assert by_tenant["acme"] not in log.read_text() + scrape
