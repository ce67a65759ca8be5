"""Files and batches through the openai SDK, and Locust, against a separate server."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = 40


@pytest.fixture
def start(start_cluster, tmp_path):
    """Starts a server that keeps batches below `tmp_path`."""

    def start(port: int | None = None):
        return start_cluster("--batch-dir", str(tmp_path / "batches"), "--workers", "1", "--threads", "1",
                             "--served-model-name", "test", port=port)

    return start


def client_of(cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{cluster.address}/v1", api_key="unused")


def lines(count: int, tokens: int = 8) -> str:
    body = {"model": "test", "prompt": "def main", "max_tokens": tokens, "ignore_eos": True}
    one = lambda n: {"custom_id": f"r-{n}", "method": "POST", "url": "/v1/completions", "body": body | {"seed": n}}
    return "".join(json.dumps(one(n)) + "\n" for n in range(count))


def until_ended(client: openai.OpenAI, batch_id: str, seconds: float = 120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        time.sleep(0.2)
    raise AssertionError(f"the batch has not ended: {batch}")


def answers(client: openai.OpenAI, file_id: str) -> dict:
    text = client.files.content(file_id).text
    parsed = [json.loads(line) for line in text.splitlines()]
    by_id = {answer["custom_id"]: answer for answer in parsed}
    assert len(by_id) == len(parsed), "each id is answered once"
    return by_id


def test_a_batch_by_the_sdk(start, tmp_path):
    client = client_of(start())
    source = tmp_path / "in.jsonl"
    source.write_text(lines(LINES) + json.dumps({"custom_id": "bad", "method": "POST", "url": "/v1/completions",
                                                 "body": {"model": "test", "prompt": "x", "temperature": -1}}) + "\n")
    with source.open("rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
    assert (uploaded.purpose, uploaded.bytes) == ("batch", source.stat().st_size)
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h",
                                  metadata={"nightly": "yes"})
    batch = until_ended(client, batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", LINES + 1, LINES, 1)
    got = answers(client, batch.output_file_id)
    assert set(got) == {f"r-{n}" for n in range(LINES)}
    assert all(answer["response"]["body"]["usage"]["completion_tokens"] == 8 for answer in got.values())
    assert "temperature" in answers(client, batch.error_file_id)["bad"]["response"]["body"]["error"]["message"]
    assert [listed.id for listed in client.batches.list()] == [batch.id]
    assert client.files.delete(uploaded.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(uploaded.id)


def test_wrong_batches_are_refused_with_their_reason(start):
    client = client_of(start())
    with pytest.raises(openai.NotFoundError, match="file-nothing"):
        client.batches.create(input_file_id="file-nothing", endpoint="/v1/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        client.batches.create(input_file_id="f", endpoint="/v1/moderations", completion_window="24h")
    uploaded = client.files.create(file=("in.jsonl", b'{"custom_id": "a"\n'), purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")
    batch = until_ended(client, batch.id)
    assert batch.status == "failed" and batch.errors.data[0].line == 1


def test_a_batch_goes_on_after_its_server_was_killed(start):
    cluster = start()
    client = client_of(cluster)
    uploaded = client.files.create(file=("in.jsonl", lines(30, 60).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")
    for pause in (0.5, 1.0):
        time.sleep(pause)
        cluster.kill()
        cluster = start(port=cluster.port)
    ended = until_ended(client, batch.id)
    assert ended.status == "completed" and ended.request_counts.completed == 30
    again = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")
    undisturbed = answers(client, until_ended(client, again.id).output_file_id)
    choices = lambda answers: {name: answer["response"]["body"]["choices"] for name, answer in answers.items()}
    assert choices(answers(client, ended.output_file_id)) == choices(undisturbed), "a kill changes no answer"


def test_locust_reports_ttft_and_tpot(start):
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "benches/load/locustfile.py"), "--headless", "-u", "2",
               "-r", "2", "-t", "6s", "--host", f"http://{start().address}", "--only-summary", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                          env=os.environ | {"MAX_TOKENS": "8"})
    assert done.returncode == 0, done.stderr
    entries = {entry["name"]: entry for entry in json.loads(done.stdout[done.stdout.index("["):])}
    assert {"TTFT", "TPOT", "/v1/completions"} <= set(entries), entries.keys()
    assert entries["TTFT"]["num_requests"] > 0 and entries["/v1/completions"]["num_failures"] == 0
