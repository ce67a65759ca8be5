#!/usr/bin/env python3
"""Loses the connection in the middle of a stream, and resumes the stream with `Last-Event-ID`.

    python3 docs/examples/resume.py [URL ...]      default: http://127.0.0.1:8000

Start a server first, such as `skein serve`. With the URLs of two routers, the first begins the answer and the
second ends it. Prints where the connection was closed, and compares the text with that of an undisturbed
request under another id. Standard library only.
"""

import itertools
import json
import sys
import urllib.request
import uuid

REQUEST = {"prompt": "def main", "max_tokens": 64, "seed": 7, "stream": True}
EVENTS_BEFORE_THE_LOSS = 20


def events(url, request_id, last_event_id=None):
    """Yields each event of a stream as (id, text). The end, `[DONE]`, has no text."""
    headers = {"content-type": "application/json"}
    if last_event_id:
        headers["last-event-id"] = last_event_id
    body = json.dumps(REQUEST | {"request_id": request_id}).encode()
    event_id = None
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body, headers)) as answer:
        for line in answer:
            field, _, value = line.decode().rstrip("\r\n").partition(": ")
            if field == "id":
                event_id = value
            elif field == "data" and value == "[DONE]":
                yield event_id, None
                return
            elif field == "data":
                event = json.loads(value)
                if "error" in event:
                    raise SystemExit(event["error"]["message"])
                yield event_id, "".join(choice["text"] for choice in event["choices"])
    raise SystemExit("the stream ended without [DONE]")


def main():
    urls = sys.argv[1:] or ["http://127.0.0.1:8000"]
    request_id = str(uuid.uuid4())
    received, last_event_id = "", None

    stream = events(urls[0], request_id)
    for last_event_id, text in itertools.islice(stream, EVENTS_BEFORE_THE_LOSS):
        received += text or ""
    stream.close()  # closes the connection, as a lost network or a dead router would
    print(f"{received}\n--- connection closed after the event {last_event_id}; resumed:")

    for _, text in events(urls[-1], request_id, last_event_id):
        print(text or "", end="", flush=True)
        received += text or ""

    undisturbed = "".join(text or "" for _, text in events(urls[0], str(uuid.uuid4())))
    print("\n---", "equal to an undisturbed answer" if received == undisturbed else "NOT EQUAL")
    return 0 if received == undisturbed else 1


if __name__ == "__main__":
    sys.exit(main())
