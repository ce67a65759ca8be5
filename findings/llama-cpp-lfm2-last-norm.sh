#!/usr/bin/env bash
# Guess: in a GGUF file the norm before the head is output_norm.weight, as in all files of decoders.
# Seen: the gguf package 0.19.0 names LFM2's token_embd_norm.weight, which elsewhere is a norm after the table
# of embeddings, here at the other end of the model: the checkpoint calls it embedding_norm. The map goes by
# that name, and knows no output_norm for this architecture.
# Run with gguf 0.19.0; a download of 20 MB, and 30 seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install gguf==0.19.0
cat >"$T/names.py" <<'PY'
import gguf

def name(architecture, tensor):
    return gguf.get_tensor_name_map(architecture, 4).get_name(tensor, (".weight",))

lfm2, llama = gguf.MODEL_ARCH.LFM2, gguf.MODEL_ARCH.LLAMA
seen = [name(lfm2, "model.embedding_norm.weight"), name(lfm2, "model.norm.weight"), name(llama, "model.norm.weight")]
print(f"lfm2: embedding_norm is {seen[0]}, norm is {seen[1]}; llama: norm is {seen[2]}")
assert seen == ["token_embd_norm.weight", None, "output_norm.weight"], seen
PY
"$T/v/bin/python" "$T/names.py"
echo "the behaviour is as described"
