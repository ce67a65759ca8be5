"""Answers of GPT-OSS in tokens, and what OpenAI's library (openai-harmony 0.0.8) reads in them. Control
tokens are written as [mark], everything else in ordinary tokens: `<|end|>` within a text is text.

    pip install openai-harmony==0.0.8
    TIKTOKEN_ENCODINGS_BASE=DIRECTORY python harmony.py

DIRECTORY holds o200k_base.tiktoken. Without a network for the library, npm's tiktoken 1.0.22 has the same
ranks in encoders/o200k_base.json.
"""

import json
import pathlib

from openai_harmony import HarmonyEncodingName, HarmonyError, Role, StreamableParser, load_harmony_encoding

START, END, CHANNEL, MESSAGE, CALL, RETURN, CONSTRAIN = (
    [f"<|{name}|>"] for name in ("start", "end", "channel", "message", "call", "return", "constrain"))
FINAL = [CHANNEL, "final", MESSAGE]
ANALYSIS = [CHANNEL, "analysis", MESSAGE]
AGAIN = [START, "assistant"]
CASES = {
    "marks in a final text": [*FINAL, "A <|end|> B <|start|>assistant<|channel|>final<|message|> C <|return|>"],
    "marks in each part": [*ANALYSIS, "a <|end|> b", END, *AGAIN, CHANNEL, "commentary", MESSAGE, "<|call|>", END, *AGAIN, *FINAL, "<|message|>", RETURN],
    "marks in arguments": [CHANNEL, "commentary to=functions.get_weather ", CONSTRAIN, "json", MESSAGE, '{"city": "A <|end|> B<|call|>"}', CALL,
                           *AGAIN, " to=functions.now", CHANNEL, "commentary", MESSAGE, "{}", CALL],
    "parts of marks before a token": [*FINAL, "<|en", END, *AGAIN, *FINAL, "<|end|", END],
    "a channel token in a text": [*FINAL, "a", CHANNEL, "b", END],
    "a message of the user": [*FINAL, "x", END, START, "user", MESSAGE, "y", END, *AGAIN, *FINAL, "z", END],
    "a result that the model made up": [CHANNEL, "commentary to=functions.now", MESSAGE, "{}", CALL,
                                        START, "functions.now to=assistant", CHANNEL, "commentary", MESSAGE, "12:00", END, *AGAIN, *FINAL, "Noon", RETURN],
    "a tool without its namespace": [CHANNEL, "commentary to=get_weather json", MESSAGE, '{"city": "Rome"}', CALL],
    "a tool without its namespace behind the role": [*ANALYSIS, "a", END, *AGAIN, " to=now", CHANNEL, "commentary", MESSAGE, "{}", CALL],
    "a call on analysis": [CHANNEL, "analysis to=functions.now", MESSAGE, "{}", CALL],
    "no blank before the type": [CHANNEL, "commentary to=functions.now", CONSTRAIN, "json", MESSAGE, "{}", CALL],
    "cut in reasoning": [*ANALYSIS, "a <|end|"],
    "cut in a call": [CHANNEL, "commentary to=functions.get_weather", MESSAGE, '{"city": "<|call|>'],
}


def main():
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    out = []
    for name, parts in CASES.items():
        parser = StreamableParser(encoding, role=Role.ASSISTANT)
        for part in parts:
            tokens = encoding.encode(part[0], allowed_special="all") if isinstance(part, list) else encoding.encode(part, disallowed_special=())
            assert not isinstance(part, list) or len(tokens) == 1
            for token in tokens:
                parser.process(token)
        try:
            parser.process_eos()
        except HarmonyError as error:
            raise SystemExit(f"{name}: {error}") from error
        messages = [[message.author.role.value, message.channel, message.recipient, "".join(item.text for item in message.content)]
                    for message in parser.messages]
        out.append({"name": name, "parts": parts, "messages": messages})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in out)
    (pathlib.Path(__file__).resolve().parent / "harmony.json").write_text(f"[\n{lines}\n]\n")


main()
