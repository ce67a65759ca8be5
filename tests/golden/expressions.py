"""Renders `expressions.txt`, a template a line, in transformers' environment: `expressions.json`.

An answer is null where Jinja raises an error, which may name values otherwise. A line that begins with
text has `\\n` for its line ends.
"""

import json
import pathlib

from templates import render

HERE = pathlib.Path(__file__).resolve().parent
GIVEN = {
    "yes": True, "n": 7, "big": 12345678901234567000, "f": [1e16, 1e-05, -0.0, 0.1, 1.5e300], "s": "it's a Test",
    "u": "a\u200bé\u00a0\x7f\n\U0001f600", "l": [3, 1, 2], "w": ["b", "A", "c"], "d": {"b": 1, "a": [None, True, "x"]},
    "rows": [{"k": "x", "v": 2, "t": {"z": 1}}, {"k": "y", "v": 1, "t": {"z": 2}}], "schema": {"type": "array"}, "named": {"items": 5},
}
def templates():
    lines = (HERE / "expressions.txt").read_text().splitlines()
    return [line if line.startswith("{") else line.replace("\\n", "\n") for line in lines]


def make():
    answers = [render(template, {}, GIVEN).get("expected") for template in templates()]
    lines = ",\n".join(json.dumps(answer, ensure_ascii=False) for answer in answers)
    head = json.dumps({"given": GIVEN}, ensure_ascii=False)[:-1]
    (HERE / "expressions.json").write_text(f'{head}, "answers": [\n{lines}\n]}}\n')
    print(f"expressions.json: {len(answers)} templates, {answers.count(None)} of them errors")


if __name__ == "__main__":
    make()
