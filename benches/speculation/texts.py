#!/usr/bin/env python3
"""Writes pairs of prompts and answers from this repository, one JSON object per line.

    benches/speculation/texts.py > texts.jsonl

copy: a text and its copy. edit: a source file before and after a commit. quote: passages of the manual, and
an answer that quotes each after other words. json: records, and more records of the same form. prose: the
first and the second half of a chapter. Standard library only; the same commit gives the same lines.
"""

import json
import pathlib
import random
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
EACH = 16
# In characters, so that a prompt and its answer have a few hundred tokens each.
LONGEST_FILE = 3000
PASSAGE = 350
WORDS = "north window paper river signal copper garden number winter engine letter bridge market silver".split()


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout


def chapters():
    """Paragraphs of prose of each chapter of the manual."""
    for path in sorted((ROOT / "docs/src").glob("*.md")):
        parts = path.read_text().split("\n\n")
        yield [part.strip() for part in parts if re.match(r"[A-Z`][^|]{120,}$", part, re.S) and "```" not in part]


def edits():
    for commit in git("log", "--no-merges", "--format=%H", "--diff-filter=M", "--", "*.rs").split():
        for path in git("diff-tree", "--no-commit-id", "--name-only", "-r", "--diff-filter=M", commit).split():
            if path.endswith(".rs"):
                before, after = git("show", f"{commit}^:{path}"), git("show", f"{commit}:{path}")
                if 400 < len(before) < LONGEST_FILE and 400 < len(after) < LONGEST_FILE:
                    subject = git("log", "-1", "--format=%s", commit).strip()
                    yield f"{before}\n\nRewrite this file: {subject}.\n\n", after


def record(chosen):
    tags = [chosen.choice(WORDS) for _ in range(2)]
    name, city = chosen.choice(WORDS), chosen.choice(WORDS)
    return {"id": chosen.randrange(10**6), "name": name, "city": city, "active": chosen.random() < 0.5, "tags": tags}


def main():
    chosen = random.Random(7)
    paragraphs = [part for chapter in chapters() for part in chapter]
    for _, (prompt, answer) in zip(range(EACH), edits()):
        print(json.dumps({"kind": "edit", "prompt": prompt, "answer": answer}))
    for at in range(EACH):
        passages = [chosen.choice(paragraphs)[:PASSAGE] for _ in range(4)]
        own = chosen.choice(paragraphs)
        text = "\n\n".join(passages)
        print(json.dumps({"kind": "copy", "prompt": f"{text}\n\nRepeat:\n\n", "answer": text}))
        quoted = [f"{own[40 * n:40 * n + 40]}\n\n> {passage[:160]}\n\n" for n, passage in enumerate(passages)]
        print(json.dumps({"kind": "quote", "prompt": f"{text}\n\nQuestion?\n\n", "answer": "".join(quoted)}))
        shown = [record(chosen) for _ in range(3)]
        more = [record(chosen) for _ in range(12)]
        text = json.dumps(shown, indent=2)[:-2]
        answer = json.dumps(more, indent=2)[1:]
        print(json.dumps({"kind": "json", "prompt": f"{text},", "answer": answer}))
    long = [chapter for chapter in chapters() if len("".join(chapter)) > 2000]
    for at in range(EACH):
        text = "\n\n".join(long[at % len(long)])[200 * (at // len(long)):]
        half = min(len(text) // 2, 1500)
        print(json.dumps({"kind": "prose", "prompt": text[:half], "answer": text[half:2 * half]}))


if __name__ == "__main__":
    main()
