#!/usr/bin/env bash
# Guess: a configuration of Gemma 4 has the size of its global heads as global_head_dim, as the published
# files have it, whichever version of transformers saved it.
# Seen: transformers 5.24.0 reads global_head_dim, but saves per_layer_config, with a head_dim for each layer
# that differs, and no global_head_dim. 5.14.0 saves global_head_dim, and refuses to read the newer form of
# the same model. So copies of one model have either form.
# Run with transformers 5.24.0 and 5.14.0, without torch; a download of 80 MB, and 5 minutes on two busy
# cores.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
cat >"$T/save.py" <<'PY'
import json
import sys

from transformers import Gemma4TextConfig, __version__

sizes = {"num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
Gemma4TextConfig(**sizes).save_pretrained(sys.argv[1])
saved = json.load(open(sys.argv[1] + "/config.json"))
saved = {key: saved[key] for key in ("head_dim", "global_head_dim", "per_layer_config") if key in saved}
print(f"{__version__} saves {saved}")
new = {"head_dim": 16, "per_layer_config": {"5": {"head_dim": 32}}}
assert saved == (new if __version__ == "5.24.0" else {"head_dim": 16, "global_head_dim": 32}), saved
PY
cat >"$T/read.py" <<'PY'
import sys

from transformers import AutoConfig, __version__

try:
    config = AutoConfig.from_pretrained(sys.argv[1])
    seen = [config.per_layer_config[layer].head_dim for layer in (0, 5)]
except Exception as error:
    seen = type(error).__name__
print(f"{__version__} reads what {sys.argv[2]} saved: {seen}")
refused = (__version__, sys.argv[2]) == ("5.14.0", "5.24.0")
assert seen == ("AmbiguousGlobalPerLayerAttributeError" if refused else [16, 32]), seen
PY
for version in 5.24.0 5.14.0; do
  python3 -m venv "$T/$version"
  "$T/$version/bin/pip" -q install "transformers==$version"
  "$T/$version/bin/python" "$T/save.py" "$T/of-$version" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
done
for pair in "5.24.0 5.14.0" "5.24.0 5.24.0" "5.14.0 5.24.0"; do
  read -r reader writer <<<"$pair"
  "$T/$reader/bin/python" "$T/read.py" "$T/of-$writer" "$writer" 2>"$T/errors" || { cat "$T/errors"; exit 1; }
done
echo "the behaviour is as described"
