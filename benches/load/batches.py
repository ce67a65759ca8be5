"""Request files in OpenAI's batch format and the endpoints that take them, for the other scripts here."""

import json
import urllib.request


def line(number: int, body: dict) -> str:
    """A line of a request file, for completions."""
    return json.dumps({"custom_id": f"r-{number}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n"


def call(url: str, body: bytes | None = None, kind: str = "application/json") -> dict:
    request = urllib.request.Request(url, body, {"content-type": kind})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def create(url: str, content: bytes) -> dict:
    """Uploads the lines in `content` and starts a batch of them."""
    edge = "a-line-that-no-request-has"
    head = f'--{edge}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{edge}\r\n' \
           'content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{edge}--\r\n".encode()
    file = call(f"{url}/v1/files", body, f"multipart/form-data; boundary={edge}")["id"]
    batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    return call(f"{url}/v1/batches", json.dumps(batch).encode())
