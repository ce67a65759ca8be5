#!/usr/bin/env bash
# Guess: a prompt that transformers makes with continue_final_message has only what the template writes, up to
# the end of the last message.
# Seen: transformers 5.24.0 marks that end with words of its own, and cuts at the last of them. A template
# that writes a message's content twice leaves CONTINUE_FINAL_MESSAGE_TAG in the prompt, where the model reads
# it. No error is raised. A template that writes it once is right.
# Run with transformers 5.24.0, tokenizers 0.23.3, jinja2 3.1.6, without torch; a download of 45 MB, and 20
# seconds.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/v"
"$T/v/bin/pip" -q install transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6
cat >"$T/twice.py" <<'PY'
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TAG = "CONTINUE_FINAL_MESSAGE_TAG"
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, unk_token="x")))
turns = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "Well"}]
for content, leaves_tag in (("{{ m.content }}", False), ("{{ m.content }}/{{ m.content }}", True)):
    template = "{% for m in messages %}[{{ m.role }}]" + content + "[end]{% endfor %}"
    prompt = tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, continue_final_message=True)
    print(f"{content}: {prompt!r}")
    assert (TAG in prompt) == leaves_tag, "this has changed"
PY
"$T/v/bin/python" "$T/twice.py"
