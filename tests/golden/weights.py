"""Recipes of weight files. Most weights here are noise, so a directory stores how to draw them instead of the
numbers: `weights.json`, and `weights.bin` with the bytes that cannot be drawn. `complete` makes a complete
directory of it; the crate in `src` makes the same bytes for the tests. README.md describes the format.

All is integers, IEEE products and sums of 64-bit floats, and rounding to nearest even, so that Python and
Rust agree in every bit on every machine.

    python weights.py [directory ...]      checks that directories give the recorded bytes; all, without names
"""

import functools
import hashlib
import json
import math
import pathlib
import shutil
import struct
import sys
import zlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
RECIPE, LITERALS = "weights.json", "weights.bin"
CACHE = HERE.parents[1] / "target" / "golden-python"
BYTES = {"U8": 1, "I8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "I16": 2, "F32": 4, "I32": 4, "F64": 8, "I64": 8}
DEVIATION = 37837.0  # of a sum of four halves


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011), over arrays of counters."""
    c, mask = [np.asarray(word, np.uint64) for word in counter], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [b >> np.uint64(32) ^ c[1] ^ np.uint64(key[0]), b & mask, a >> np.uint64(32) ^ c[3] ^ np.uint64(key[1]), a & mask]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


def halves(seed: int, name: str, count: int) -> np.ndarray:
    """16-bit random numbers. The key is FNV-1a of the name, the counter the block and the seed."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    blocks = np.arange(-(-count // 8), dtype=np.uint64)
    zero = np.zeros_like(blocks)
    words = philox([blocks, zero, zero + np.uint64(seed), zero], [key & 0xFFFFFFFF, key >> 32])
    return np.stack(words, -1).astype("<u4").reshape(-1).view("<u2")[:count]


def stored(values: np.ndarray, dtype: str) -> bytes:
    """64-bit floats, rounded to 32 bits and then to `dtype`; integers are cut off."""
    if dtype == "U8":
        return values.astype(np.uint8).tobytes()
    single = values.astype("<f4")
    if dtype == "BF16":
        bits = single.view("<u4").astype(np.uint64)
        return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2").tobytes()
    return single.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()


def draw(seed: int, name: str, dtype: str, shape, source: dict) -> bytes:
    """Bytes of a drawn tensor."""
    count = math.prod(shape)
    if "normal" in source:
        sums = halves(seed, name, 4 * count).reshape(-1, 4).sum(-1, dtype=np.int64) - 131070
        return stored(sums.astype(np.float64) * (source["normal"] / DEVIATION), dtype)
    if "uniform" in source:
        low, high = source["uniform"]
        return stored(low + halves(seed, name, count).astype(np.float64) * ((high - low) / 65536), dtype)
    kept, fixed = (np.frombuffer(bytes.fromhex(text), np.uint8) for text in source["bytes"])
    size = count * BYTES[dtype]
    random = halves(seed, name, -(-size // 2)).view(np.uint8)[:size]
    return (random & np.resize(kept, size) | np.resize(fixed, size)).tobytes()


def view(whole: bytes, size: int, at: int, shape, steps) -> bytes:
    """Elements of `size` bytes, taken from `at` on in steps of bytes."""
    rest = np.frombuffer(whole, np.uint8, offset=at)
    return np.lib.stride_tricks.as_strided(rest, (*shape, size), (*steps, 1)).tobytes()


def q8_0(blocks: bytes, count: int) -> bytes:
    """Values of GGUF's blocks: a scale in half precision and 32 codes."""
    rows = np.frombuffer(blocks, np.uint8, count // 32 * 34).reshape(-1, 34)
    scales = rows[:, :2].copy().view("<f2").astype(np.float32)
    return (scales * rows[:, 2:].view(np.int8).astype(np.float32)).astype("<f4").tobytes()


def header(pieces: list) -> bytes:
    """What the safetensors package writes before the tensors."""
    at, table = 0, {"__metadata__": {"format": "pt"}}
    for piece in pieces:
        end = at + math.prod(piece["shape"]) * BYTES[piece["dtype"]]
        table[piece["name"]] = {"dtype": piece["dtype"], "shape": piece["shape"], "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def build_piece(piece: dict, read, seed: int = 0) -> bytes:
    """Bytes of a piece that is not literal; `read` gives files."""
    source = piece["from"]
    if "view" in source:
        other = source["view"]
        return view(read(other["file"]), BYTES[piece["dtype"]], other["at"], piece["shape"], other["steps"])
    if "q8_0" in source:
        other = source["q8_0"]
        return q8_0(read(other["file"])[other["at"]:], math.prod(piece["shape"]))
    return draw(seed, piece["name"], piece["dtype"], piece["shape"], source)


def build(recipe: dict, literals: bytes, read) -> dict[str, bytes]:
    """Content of a recipe's files by name; `read` gives other directories' files."""
    files, used = {}, 0
    for file in recipe["files"]:
        parts = [header(file["pieces"])] if file["format"] == "safetensors" else []
        for piece in file["pieces"]:
            if piece["from"] == "literal":
                size = math.prod(piece["shape"]) * BYTES[piece["dtype"]]
                parts.append(literals[used:used + size])
                used += size
            else:
                parts.append(build_piece(piece, lambda name: files.get(name) or read(name), recipe["seed"]))
        files[file["name"]] = b"".join(parts)
        digest = hashlib.sha256(files[file["name"]]).hexdigest()
        assert digest == file["sha256"], f"{file['name']}: {digest} is not the recorded {file['sha256']}"
    assert used == len(literals), f"{len(literals) - used} literal bytes are left over"
    return files


@functools.cache
def read_file(name: str) -> bytes:
    """A weight file by its path under this directory."""
    return (complete(HERE / pathlib.Path(name).parent) / pathlib.Path(name).name).read_bytes()


def complete(directory: pathlib.Path) -> pathlib.Path:
    """A copy of `directory` with its weight files."""
    recipe = json.loads((directory / RECIPE).read_text())
    literals = directory / LITERALS
    files = build(recipe, zlib.decompress(literals.read_bytes(), -15) if literals.exists() else b"", read_file)
    copy = CACHE / directory.relative_to(HERE)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns(RECIPE, LITERALS))
    for name, content in files.items():
        (copy / name).write_bytes(content)
    return copy


def of_safetensors(path: pathlib.Path, drawn: dict) -> tuple[dict, bytes]:
    """Recipe of a file that the safetensors package wrote, and its literal bytes: `drawn` has the sources of
    drawn tensors."""
    content = path.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    table, pieces, literals = json.loads(content[8:start]), [], []
    for name, entry in table.items():
        if name == "__metadata__":
            continue
        source = drawn.get(name, "literal")
        pieces.append({"name": name, "dtype": entry["dtype"], "shape": entry["shape"], "from": source})
        if source == "literal":
            literals.append(content[start:][slice(*entry["data_offsets"])])
    return {"name": path.name, "format": "safetensors", "sha256": hashlib.sha256(content).hexdigest(), "pieces": pieces}, b"".join(literals)


def text_of(recipe: dict) -> str:
    """A line a piece."""
    dump = lambda value: json.dumps(value, separators=(",", ":"))
    files = []
    for file in recipe["files"]:
        start = dump({key: file[key] for key in ("name", "format", "sha256")})[:-1]
        files.append(start + ',"pieces":[\n' + ",\n".join(map(dump, file["pieces"])) + "\n]}")
    return f'{{"seed":{recipe["seed"]},"files":[\n' + ",\n".join(files) + "\n]}\n"


def write(directory: pathlib.Path, seed: int, files: list, literals: bytes) -> None:
    """Writes the recipe of `files` beside them, checks it against them, and removes them."""
    recipe = {"seed": seed, "files": files}
    for name, content in build(recipe, literals, read_file).items():
        assert content == (directory / name).read_bytes(), f"{directory / name} is not what its recipe gives"
        (directory / name).unlink()
    (directory / RECIPE).write_text(text_of(recipe))
    (directory / LITERALS).unlink(missing_ok=True)
    if literals:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        (directory / LITERALS).write_bytes(deflate.compress(literals) + deflate.flush())


if __name__ == "__main__":
    for directory in [pathlib.Path(name).resolve() for name in sys.argv[1:]] or sorted(path.parent for path in HERE.glob(f"**/{RECIPE}")):
        print(complete(directory))
