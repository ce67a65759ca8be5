"""Loads any OpenAI-compatible server with Locust; reports TTFT and TPOT as separate entries.

    pip install locust
    locust -f benches/load/locustfile.py --headless -u 8 -r 8 -t 30s --host http://127.0.0.1:8000

Environment: MODEL (default: the first that the server lists), API_KEY, PROMPTS (a file with a prompt a line),
MAX_TOKENS (default 64).
"""

import json
import os
import random
import time

from locust import HttpUser, between, events, task

PROMPTS = ["Write a function that adds two numbers.", "Explain a mutex in one sentence.", "def main"]


def prompts() -> list[str]:
    path = os.environ.get("PROMPTS")
    if not path:
        return PROMPTS
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    if not lines:
        raise SystemExit(f"PROMPTS={path} has no line")
    return lines


def report(name: str, seconds: float, context) -> None:
    """Reports `seconds` as the response time of the entry `name` in Locust's tables."""
    events.request.fire(request_type="METRIC", name=name, response_time=seconds * 1000.0, response_length=0,
                        exception=None, context=context)


class Streaming(HttpUser):
    """Sends consecutive streamed completions."""

    wait_time = between(0.0, 0.5)

    def on_start(self) -> None:
        self.prompts = prompts()
        key = os.environ.get("API_KEY")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.model = os.environ.get("MODEL") or self.first_model()

    def first_model(self) -> str:
        answer = self.client.get("/v1/models", headers=self.headers)
        answer.raise_for_status()
        return answer.json()["data"][0]["id"]

    @task
    def completion(self) -> None:
        body = {"model": self.model, "prompt": random.choice(self.prompts), "stream": True, "temperature": 0,
                "max_tokens": int(os.environ.get("MAX_TOKENS", "64")), "stream_options": {"include_usage": True}}
        start = time.perf_counter()
        with self.client.post("/v1/completions", json=body, headers=self.headers, stream=True,
                              catch_response=True, name="/v1/completions") as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}: {answer.text[:200]}")
                return
            first, tokens, done = None, 0, False
            for line in answer.iter_lines():
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]":
                    done = True
                    break
                event = json.loads(line[len(b"data: "):])
                if "error" in event:
                    answer.failure(event["error"].get("message", "error in the stream"))
                    return
                if first is None and any(choice.get("text") for choice in event.get("choices", [])):
                    first = time.perf_counter()
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if not done:
                answer.failure("the stream ended without [DONE]")
                return
            answer.success()
        if first is not None:
            report("TTFT", first - start, self.context())
            if tokens > 1:
                report("TPOT", (time.perf_counter() - first) / (tokens - 1), self.context())
