#!/usr/bin/env bash
# Guess: OpenTelemetry's package of names says which gen_ai attributes and metrics are current: old ones
# such as gen_ai.system are deprecated and name what replaces them, and gen_ai.provider.name is not
# deprecated. A check that refuses deprecated names keeps a server up to date.
# Seen: in opentelemetry-semantic-conventions 0.66b2 all 60 gen_ai attributes and all 7 gen_ai metrics are
# marked as deprecated, current ones as well. 57 of the 67 give no other name: the definitions moved to
# another repository and the names stayed. Mere use of the list of operation names raises a
# DeprecationWarning. In 0.62b1 46 of 56 attributes and all 5 metrics were not deprecated. Such a check
# finds every name, so it can tell nothing.
# Run with opentelemetry-semantic-conventions 0.66b2 and 0.62b1; a download of under 1 MB, and 20 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
cat >"$T/count.py" <<'PY'
import ast
import collections
import pathlib
import sys
import warnings

import opentelemetry.semconv._incubating as package

root = pathlib.Path(list(package.__path__)[0])


def marks(path):
    """How each name of a file is documented: live, moved, or deprecated in another way."""
    body = ast.parse((root / path).read_text()).body
    found = {}
    for name, doc in zip(body, body[1:]):
        if isinstance(name, ast.AnnAssign) and isinstance(doc, ast.Expr):
            text = doc.value.value.strip()
            kind = "moved" if text.startswith("Deprecated: Moved") else "deprecated" if text.startswith("Deprecated") else "live"
            found[name.value.value] = kind
    return found


attributes, metrics = marks("attributes/gen_ai_attributes.py"), marks("metrics/gen_ai_metrics.py")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    gen_ai_attributes.GenAiOperationNameValues("chat")
warned = any(issubclass(warning.category, DeprecationWarning) for warning in seen)
counts = [dict(collections.Counter(found.values())) for found in (attributes, metrics)]
print("attributes", counts[0], "metrics", counts[1], "warns" if warned else "is silent")
print("gen_ai.provider.name is", attributes["gen_ai.provider.name"])
old = [{"live": 46, "deprecated": 10}, {"live": 5}], False
new = [{"moved": 50, "deprecated": 10}, {"moved": 7}], True
assert (counts, warned) == (old if sys.argv[1] == "0.62b1" else new), "changed"
PY
for version in 0.62b1 0.66b2; do
    python3 -m venv "$T/$version"
    "$T/$version/bin/pip" -q install "opentelemetry-semantic-conventions==$version"
    echo "$version:"
    "$T/$version/bin/python" "$T/count.py" "$version"
done
echo "as seen"
