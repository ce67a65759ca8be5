"""Common part of the peers' processes: they load once, then answer questions from standard input.

A question is a JSON line {"measure": "prefill" | "decode" | "greedy", "batch": B, "input": P, "output": N,
"seed": S}; so is the answer. Whatever libraries print to standard output is redirected to standard error.
"""

import json
import os
import random
import sys
import time


def prompts(question: dict, vocab_size: int) -> list[list[int]]:
    """Prompts of random tokens, never the same twice."""
    draw = random.Random(question["seed"])
    return [[draw.randrange(vocab_size - 1) for _ in range(question["input"])] for _ in range(question["batch"])]


def answer_questions(load) -> None:
    """`load()` returns (description, vocab_size, generate). `generate(prompts, output)` yields the tokens of
    sequence 0 after each step of the batch, starting once every sequence has its first token."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start = time.perf_counter()
    description, vocab_size, generate = load()
    print(json.dumps({"ready_s": time.perf_counter() - start, **description}), file=answers)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(measured(question, prompts(question, vocab_size), generate)), file=answers)


def measured(question: dict, asked: list[list[int]], generate) -> dict:
    kind, output = question["measure"], 1 if question["measure"] == "prefill" else question["output"]
    start = time.perf_counter()
    times, tokens = [], []
    for token in generate(asked, output):
        times.append(time.perf_counter() - start)
        tokens.append(token)
    assert len(times) == output, f"{len(times)} steps instead of {output}"
    if kind == "greedy":
        return {"tokens": tokens}
    if kind == "prefill":
        return {"tokens_per_second": len(asked) * question["input"] / times[0]}
    return {"tokens_per_second": len(asked) * (output - 1) / (times[-1] - times[0]),
            "prefill_tokens_per_second": len(asked) * question["input"] / times[0]}
