#!/usr/bin/env python3
"""Random ranges of numbers: 20 answers each, and probes at the bounds, judged in fractions of their texts.
Run by hand: cargo build -p skein-grammar --example numbers, then
tests/grammar/number_ranges.py target/debug/examples/numbers [RANGES] [SEED]
With jsonschema installed, a tenth of the answers is also judged by it, with Decimal."""

import decimal
import json
import math
import random
import subprocess
import sys
import threading
from fractions import Fraction

try:
    import jsonschema
except ImportError:
    jsonschema = None

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def number(rng):
    """A decimal text of at most 15 digits, often near an integer, and often as an exponent."""
    whole = rng.choice(["0", "0", "0", "1", "3", "10", "99", "1000", str(rng.randrange(10**rng.randrange(1, 8)))])
    places = rng.randrange(10 if len(whole) < 7 else 9)
    part = rng.choice(["", str(rng.randrange(1, 100)), str(rng.randrange(10**5))])[: places or 1].rjust(places, "0") if places else ""
    text = f"{rng.choice(['', '-'])}{whole}" + (f".{part}" if part else "")
    text = "0" if Fraction(text) == 0 else text
    if rng.random() < 0.1:
        text = f"{decimal.Decimal(text):e}"
    return text


def bounds(rng, low, high):
    """Keywords for one or both bounds, sometimes with draft 4's flags. Texts, so that exponents stay."""
    out = {}
    for names, bound in ((LOWER, low), (UPPER, high)):
        if bound is None:
            continue
        how = rng.random()
        if how < 0.45:
            out[names[0]] = bound
        elif how < 0.9:
            out[names[1]] = bound
        elif how < 0.95:
            out |= {names[0]: bound, names[1]: True}
        else:
            out |= {names[0]: bound, names[1]: bound}
    return out


def schema(rng):
    low, high = sorted((number(rng), number(rng)), key=Fraction)
    if rng.random() < 0.15:
        low, high = rng.choice([(low, None), (None, high)])
    if low and high and rng.random() < 0.2:
        # Within one unit of the place of the lower bound.
        high = str(decimal.Decimal(low) + decimal.Decimal(rng.choice(["0.1", "0.5", "0.001", "1e-6", "1e-9"])))
        # A schema's numbers are doubles, so a bound has at most 15 digits.
        high = high if len(high.strip("-").replace(".", "").lstrip("0")) <= 15 else low
    kind = rng.choice(["number", "number", "number", "integer", None, ["number", "null"]])
    first = {"type": kind} if kind else {}
    if rng.random() < 0.2:
        first["multipleOf"] = rng.choice(["0.1", "0.01", "0.5", "0.25", "2", "0.07", "3", "2.5", "0.001", "1e-6"])
    how = rng.random()
    if how < 0.6 or not (low and high):
        return first | bounds(rng, low, high)
    left, right = bounds(rng, low, None), bounds(rng, None, high)
    if how < 0.75:
        return first | {"allOf": [left, right]}
    if how < 0.85:
        return first | left | {"$ref": "#/$defs/a", "$defs": {"a": right}}
    return first | {"anyOf": [left | right, bounds(rng, high, None)]}


def written(value):
    """JSON in which the texts of numbers are numbers."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{written(v) if k not in ('type', '$ref') else json.dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def holds(schema, value, root=None, nearest=False):
    """Whether the exact `value` is valid. With `nearest`, an exclusive bound is the next double."""
    root = root or schema
    kinds = schema.get("type", "number")
    if kinds == "integer" and value.denominator != 1:
        return False
    for names, sign in ((LOWER, 1), (UPPER, -1)):
        inclusive, exclusive = (schema.get(name) for name in names)
        if inclusive is not None and sign * value < sign * Fraction(inclusive):
            return False
        exclusive = inclusive if exclusive is True else exclusive
        if exclusive in (None, False):
            continue
        bound = Fraction(exclusive)
        if sign * value <= sign * bound:
            return False
        if nearest:
            beyond = Fraction("1e-36") * sign if bound == 0 else Fraction(repr(math.nextafter(float(bound), sign * math.inf)))
            if sign * value < sign * beyond:
                return False
    if "multipleOf" in schema and (value / Fraction(schema["multipleOf"])).denominator != 1:
        return False
    inner = [holds(part, value, root, nearest) for part in schema.get("allOf", [])]
    if "$ref" in schema:
        inner.append(holds(root["$defs"]["a"], value, root, nearest))
    return all(inner) and ("anyOf" not in schema or any(holds(part, value, root, nearest) for part in schema["anyOf"]))


def texts(schema):
    """All bounds."""
    for key, value in schema.items():
        if key in LOWER + UPPER and isinstance(value, str):
            yield value
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from texts(part if key != "$defs" else part["a"])


def probes(rng, schema):
    """The bounds, a unit of several last places beside them, more digits, and zero."""
    decimal.getcontext().prec = 400
    found = {"0", "-0", "0.0", "1", "-1"}
    for text in texts(schema):
        bound = decimal.Decimal(text)
        place = bound.normalize().as_tuple().exponent
        for at in (place, place - 1, place - 3, 0, -1, -12, -20):
            unit = decimal.Decimal(1).scaleb(at)
            found |= {f"{bound + step * unit:f}" for step in (-1, 0, 1, rng.randrange(2, 9))}
        found |= {f"{bound:f}"[:end] for end in range(1, 12)}
        if "multipleOf" in schema:
            step = decimal.Decimal(schema["multipleOf"])
            count = (bound / step).to_integral_value()
            found |= {f"{(count + more) * step:f}" for more in (-1, 0, 1)}
    return sorted(text for text in found if text not in ("", "-") and not text.endswith("."))


def canonical(text):
    """Without trailing zeros or a sign of zero: the spelling that must be possible."""
    value = Fraction(text)
    return text != "-0" and not ("." in text and text.endswith("0")) and (value != 0 or text == "0")


def must_be(schema, text):
    digits = text.strip("-").replace(".", "").lstrip("0")
    if not canonical(text) or len(digits) > 15:
        return False
    if "multipleOf" in schema and {"allOf", "anyOf", "$ref"} & schema.keys():
        # The library divides doubles where it merges a step with bounds: some numbers need zeros at the end.
        return False
    return holds(schema, Fraction(text), nearest=True)


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    run = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    cases = [schema(rng) for _ in range(count)]
    probed = [probes(rng, case) for case in cases]

    def feed():
        for at, (case, texts) in enumerate(zip(cases, probed)):
            run.stdin.write(f'{{"schema": {written(case)}, "probes": {json.dumps(texts)}, "seed": {at * 20}}}\n')
        run.stdin.close()

    threading.Thread(target=feed, daemon=True).start()
    seen = dict.fromkeys(("answers", "invalid", "probes", "wrongly accepted", "wrongly rejected", "refused", "wrongly refused", "by jsonschema"), 0)

    def fault(what, case, text):
        seen[what] += 1
        if seen[what] <= 20:
            print(f"{what}: {text} under {written(case)}")

    for at, (case, texts, line) in enumerate(zip(cases, probed, run.stdout)):
        told = json.loads(line)
        if "refused" in told:
            seen["refused"] += 1
            if any(must_be(case, text) for text in texts):
                fault("wrongly refused", case, told["refused"])
            continue
        for text in told["answers"]:
            if text in ("null", "true", "false") or text[0] in '"[{':
                continue
            seen["answers"] += 1
            if "e" in text.lower() or not holds(case, Fraction(text)):
                fault("invalid", case, text)
            if jsonschema and at % 10 == 0:
                seen["by jsonschema"] += 1
                exact = json.loads(written(case), parse_float=decimal.Decimal)
                draft = jsonschema.Draft4Validator if "true" in written(case) else jsonschema.Draft202012Validator
                if not draft(exact).is_valid(json.loads(text, parse_float=decimal.Decimal)):
                    fault("invalid", case, f"{text} (jsonschema)")
        for text, is_accepted in zip(texts, told["accepted"]):
            seen["probes"] += 1
            if is_accepted and not holds(case, Fraction(text)):
                fault("wrongly accepted", case, text)
            if not is_accepted and must_be(case, text):
                fault("wrongly rejected", case, text)
    print(", ".join(f"{what} {count}" for what, count in seen.items()))
    sys.exit(any(seen[what] for what in seen if what.startswith("wrongly") or what == "invalid"))


if __name__ == "__main__":
    main()
