#!/usr/bin/env bash
# Guess: rope_theta of a configuration as transformers 4 wrote it means the same in version 5: the base of
# the rotation in all layers.
# Seen: for olmo3, transformers 5.24.0 gives that base to layers without a window alone. Layers with a window,
# three of four, get the family's default, 500000, without a word. In 4.57.6 there is one base for all. A
# model with another base than the default is read with two.
# Run with transformers 5.24.0 and 4.57.6, without torch; a download of 60 MB, and 80 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
mkdir "$T/model"
echo '{"model_type": "olmo3", "num_hidden_layers": 4, "rope_theta": 10000.0}' >"$T/model/config.json"
cat >"$T/bases.py" <<'PY'
import sys

from transformers import AutoConfig, __version__

config = AutoConfig.from_pretrained(sys.argv[1])
parameters = getattr(config, "rope_parameters", None)
bases = {kind: of["rope_theta"] for kind, of in parameters.items()} if parameters else {"all layers": config.rope_theta}
print(f"{__version__}: {bases}")
expected = {"sliding_attention": 500000.0, "full_attention": 10000.0}
assert bases == (expected if __version__.startswith("5") else {"all layers": 10000.0}), bases
PY
for version in 5.24.0 4.57.6; do
  python3 -m venv "$T/$version"
  "$T/$version/bin/pip" -q install "transformers==$version"
  "$T/$version/bin/python" "$T/bases.py" "$T/model" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
done
echo "the behaviour is as described"
