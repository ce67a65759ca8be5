"""Clients that wrap the API their own way: langchain-openai and litellm."""

import logging

import langchain_openai
import litellm
import pytest

MODEL = "skein-7m"
logging.getLogger("LiteLLM").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def base(cluster):
    return f"http://{cluster.address}"


def test_langchain_whole_and_streamed(base):
    chat = langchain_openai.ChatOpenAI(
        base_url=f"{base}/v1", api_key="unused", model=MODEL, temperature=0, max_tokens=16, max_retries=0
    )
    whole = chat.invoke("Write a loop")
    assert whole.content and whole.usage_metadata["output_tokens"] <= 16
    assert "".join(chunk.content for chunk in chat.stream("Write a loop")) == whole.content


def test_langchain_completion(base):
    llm = langchain_openai.OpenAI(base_url=f"{base}/v1", api_key="unused", model=MODEL, temperature=0, max_tokens=8)
    assert llm.invoke("import ")


def test_litellm_whole_and_streamed(base):
    request = dict(
        model=f"openai/{MODEL}",
        api_base=f"{base}/v1",
        api_key="unused",
        messages=[{"role": "user", "content": "Write a loop"}],
        temperature=0,
        max_tokens=16,
    )
    whole = litellm.completion(**request)
    assert whole.usage.completion_tokens <= 16
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**request, stream=True))
    assert streamed == whole.choices[0].message.content
