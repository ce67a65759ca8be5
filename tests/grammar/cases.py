"""Schemas and valid instances from the packages in a directory, as lines of JSON for `published.rs`."""

import base64
import json
import pathlib
import sys
import tarfile
import zipfile

DRAFTS = {"draft7", "draft2019-09", "draft2020-12"}
# BFCL uses Python's and Java's names for JSON Schema's types.
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "any": None, "int": "integer",
         "bool": "boolean", "str": "string", "String": "string", "Boolean": "boolean", "long": "integer",
         "double": "number", "char": "string", "ArrayList": "array", "Array": "array", "HashMap": "object",
         "Hashtable": "object", "Queue": "array", "Stack": "array", "Any": None, "byte": "integer", "short": "integer"}


def suite(archive: pathlib.Path):
    """A case for each group of tests in the suite's main files."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = pathlib.PurePosixPath(member.name).parts
            if member.name.rpartition(".")[2] != "json" or parts[-3:-2] != ("tests",) or parts[-2] not in DRAFTS:
                continue
            # From 2019-09 on the suite treats a format as an annotation; we enforce it.
            is_remark = parts[-1] == "format.json" and parts[-2] != "draft7"
            for group in json.load(tar.extractfile(member)):
                yield {"name": f"{parts[-2]}/{parts[-1]}: {group['description']}", "schema": group["schema"],
                       "valid": [test["data"] for test in group["tests"] if test["valid"] and not is_remark]}


def json_schema(schema):
    """Converts BFCL's description of parameters to JSON Schema."""
    if not isinstance(schema, dict):
        return {}
    out = {}
    for key, value in schema.items():
        if key == "type":
            name = TYPES.get(value, value) if isinstance(value, str) else value
            if name is not None:
                out["type"] = name
        elif key == "properties" and isinstance(value, dict):
            out[key] = {name: json_schema(inner) for name, inner in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            out[key] = json_schema(value)
        elif key in ("enum", "required", "description") or key in ("minimum", "maximum", "pattern", "format", "minItems", "maxItems"):
            out[key] = value
    return out


def functions(wheel: pathlib.Path):
    """Each distinct function once."""
    seen = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if "/data/" not in name or not name.endswith(".json"):
                continue
            for line in archive.read(name).decode().splitlines():
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                listed = found.get("function", []) if isinstance(found, dict) else []
                for function in listed if isinstance(listed, list) else [listed]:
                    key = json.dumps(function, sort_keys=True)
                    if isinstance(function, dict) and "parameters" in function and key not in seen:
                        seen.add(key)
                        yield {"name": function.get("name", ""), "schema": json_schema(function["parameters"]), "valid": []}


def maskbench(data: pathlib.Path):
    """The schemas of JSONSchemaBench, with the valid and invalid instances that MaskBench adds."""
    for path in sorted(data.glob("*.json")):
        case = json.loads(path.read_text())
        tests = case.get("tests", [])
        yield {"name": f"jsonschemabench/{path.stem}", "schema": case["schema"], "valid": [test["data"] for test in tests if test["valid"]],
               "invalid": [test["data"] for test in tests if not test["valid"]]}


def vocabulary(wheel: pathlib.Path):
    """The parts of a tokenizer.json with Qwen's 151,643 tokens that `published.rs` reads."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet |= {byte: chr(0x100 + at) for at, byte in enumerate(byte for byte in range(256) if byte not in alphabet)}
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read("dashscope/resources/qwen.tiktoken").split(b"\n")
    tokens = [line.split() for line in lines if line]
    return {"decoder": {"type": "ByteLevel"}, "added_tokens": [], "model": {
        "vocab": {"".join(alphabet[byte] for byte in base64.b64decode(token)): int(rank) for token, rank in tokens}}}


def write(path: pathlib.Path, cases):
    lines = [json.dumps(case) for case in cases]
    path.write_text("\n".join(lines) + "\n")
    print(f"{path.name}: {len(lines)} schemas", file=sys.stderr)


if __name__ == "__main__":
    packages = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        write(packages / "jsonschemabench.jsonl", maskbench(pathlib.Path(sys.argv[2])))
        sys.exit()
    write(packages / "suite.jsonl", suite(next(packages.glob("jsonschema-*.tar.gz"))))
    write(packages / "functions.jsonl", functions(next(packages.glob("bfcl_eval-*.whl"))))
    (packages / "tokenizer-151k.json").write_text(json.dumps(vocabulary(next(packages.glob("dashscope-*.whl")))))
