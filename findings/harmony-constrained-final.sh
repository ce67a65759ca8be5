#!/usr/bin/env bash
# Guess: openai-harmony reads back what it has written: a message on the channel `final` whose content
# type is `<|constrain|>json` comes back with that content type and without a recipient.
# Seen: openai-harmony 0.0.8 writes `<|channel|>final <|constrain|>json<|message|>`, and reads the same
# tokens as a message to the recipient `<|constrain|>json`, without a content type. A bare `json` becomes
# a recipient, too. If the header has a `to=`, the content type is read as one. So a server must not take
# every message with a recipient for a call: an answer in JSON has one. It must look for the name's
# prefix, `functions.`.
# Run with openai-harmony 0.0.8. Its ranks come from tiktoken 1.0.22 (npm), because it would otherwise
# download them; it checks their SHA-256 itself. Downloads of 9 MB, and 15 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install openai-harmony==0.0.8
(cd "$T" && npm pack --silent tiktoken@1.0.22 >/dev/null && tar xzf tiktoken-1.0.22.tgz package/encoders/o200k_base.json)
cat >"$T/read_back.py" <<'PY'
import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
packed = json.loads((folder / "package/encoders/o200k_base.json").read_text())["bpe_ranks"]
ranks = []
for line in packed.splitlines():
    _, first, *pieces = line.split(" ")  # "! 0 IQ== Ig== ...": consecutive ranks from the number on
    ranks += [(int(first) + at, piece) for at, piece in enumerate(pieces)]
(folder / "o200k_base.tiktoken").write_text("".join(f"{piece} {rank}\n" for rank, piece in sorted(ranks)))

from openai_harmony import Conversation, HarmonyEncodingName, Message, Role, load_harmony_encoding

harmony = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def there_and_back(message):
    tokens = harmony.render_conversation_for_training(Conversation.from_messages([message]))
    text = harmony.decode_utf8(tokens)
    start = harmony.encode("<|start|>assistant", allowed_special="all")
    assert tokens[: len(start)] == start
    (read,) = harmony.parse_messages_from_completion_tokens(tokens[len(start) :], Role.ASSISTANT)
    return text, read.recipient, read.content_type


def message(channel, kind, recipient=None):
    made = Message.from_role_and_content(Role.ASSISTANT, "{}").with_channel(channel).with_content_type(kind)
    return made.with_recipient(recipient) if recipient else made


constrained = "<|constrain|>json"
cases = [
    (message("final", constrained), (constrained, None)),
    (message("final", "json"), ("json", None)),
    (message("commentary", constrained), (constrained, None)),
    (message("commentary", constrained, "functions.f"), ("functions.f", constrained)),
]
for made, expected in cases:
    text, *read = there_and_back(made)
    print(f"{text}: recipient {read[0]}, content type {read[1]}")
    assert tuple(read) == expected, f"this has changed: {expected} before"
PY
TIKTOKEN_ENCODINGS_BASE="$T" "$T/v/bin/python" "$T/read_back.py" "$T"
