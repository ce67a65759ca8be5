#!/usr/bin/env bash
# Guess: where a schema is enforced while text is generated, no number outside its bounds can be generated,
# and each number within them can, however JSON spells it.
# Seen: llguidance 1.9.1 accepts a bound that is excluded if it is a whole number and the other bound comes
# before the next one: 0 with exclusiveMinimum 0 and maximum 0.5, but not with maximum 1; 10 for (10, 10.5].
# The same number with a point, 0.0, is rejected. With a bound, no number can have an exponent: below 0.5, 0.4
# and 0.40 are accepted, 4e-1 is not. Without bounds it is.
# Run with llguidance 1.9.1; a download of 3 MB, and 5 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install llguidance==1.9.1
cat >"$T/ranges.py" <<'PY'
from llguidance import LLMatcher, LLTokenizer

BYTES = LLTokenizer("byte")


def accepts(schema, text):
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema({"type": "number", **schema}))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


cases = [
    ({"exclusiveMinimum": 0, "maximum": 0.5}, "0", True),  # outside
    ({"exclusiveMinimum": 0, "maximum": 0.5}, "0.0", False),
    ({"exclusiveMinimum": 0, "maximum": 1}, "0", False),
    ({"exclusiveMinimum": 10, "maximum": 10.5}, "10", True),  # outside
    ({"exclusiveMinimum": 10, "maximum": 11}, "10", False),
    ({"exclusiveMaximum": 0.5}, "0.4", True),
    ({"exclusiveMaximum": 0.5}, "0.40", True),
    ({"exclusiveMaximum": 0.5}, "4e-1", False),
    ({}, "4e-1", True),
]
for schema, text, expected in cases:
    seen = accepts(schema, text)
    print(f"{schema}: {text} is {'accepted' if seen else 'rejected'}")
    assert seen == expected, "this has changed"
PY
"$T/v/bin/python" "$T/ranges.py"
