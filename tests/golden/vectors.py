"""Makes test vectors of pure functions: the block hash (proto/testdata/block_hash.json), Philox4x32-10
(philox.json), and the draws of weights (draws.json), whose two implementations must agree."""

import json
import pathlib
import random
import struct

import xxhash

import weights

HERE = pathlib.Path(__file__).resolve().parent
BLOCK_HASH = HERE.parents[1] / "proto" / "testdata" / "block_hash.json"
BLOCK_SIZE = 16

# Known answers of Random123 (Salmon et al. 2011) in its kat_vectors file: counter, key, output of 10 rounds.
PHILOX = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def philox4x32_10(counter, key):
    """Ten rounds as in the paper. Checked against the table above, then used for more vectors."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def make_philox():
    vectors = []
    for counter, key, output in PHILOX:
        counter, key, output = ([int(word, 16) for word in text.split()] for text in (counter, key, output))
        assert philox4x32_10(counter, key) == output, "the known answers disagree with the paper's rounds"
        vectors.append({"counter": counter, "key": key, "output": output, "from": "Random123 kat_vectors"})
    rng = random.Random(5)
    for _ in range(5):
        counter, key = [rng.getrandbits(32) for _ in range(4)], [rng.getrandbits(32) for _ in range(2)]
        vectors.append({"counter": counter, "key": key, "output": philox4x32_10(counter, key), "from": "computed here"})
    write(HERE / "philox.json", {"rounds": 10}, vectors)


def block_hashes(model: str, adapter: str, cache_salt: str, tokens):
    """(root, chain): one hash per full block, each seeded with the previous; a partial last block has
    none."""
    root = xxhash.xxh3_64_intdigest(b"".join(part.encode() + b"\0" for part in (model, adapter)) + cache_salt.encode(), seed=0)
    chain, previous = [], root
    for at in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        block = struct.pack(f"<{BLOCK_SIZE}I", *tokens[at:at + BLOCK_SIZE])
        previous = xxhash.xxh3_64_intdigest(block, seed=previous)
        chain.append(previous)
    return root, chain


def make_block_hash():
    rng = random.Random(9)
    shared = [rng.randrange(128_256) for _ in range(48)]
    cases = [
        ("skein-7m", "", "", list(range(16))),
        ("skein-7m", "", "", []),
        ("skein-7m", "", "", list(range(15))),  # no full block
        ("skein-7m", "", "tenant-a", list(range(16))),  # a salt changes every hash
        ("skein-7m", "lora-1", "", list(range(16))),
        ("meta-llama/Llama-3.1-8B-Instruct", "", "", shared),
        ("meta-llama/Llama-3.1-8B-Instruct", "", "", shared[:32] + [7] * 20),  # two shared blocks, then 4
        ("modèle-模型", "", "sel \u00e9", [0, 0xFFFFFFFF, 1, 2 ** 31] * 8),
        ("a", "b", "", [0] * 64),
        ("a", "", "b", [0] * 64),  # the separators keep these two apart
    ]
    vectors = []
    for model, adapter, salt, tokens in cases:
        root, chain = block_hashes(model, adapter, salt, tokens)
        vectors.append({"model": model, "adapter": adapter, "cache_salt": salt, "tokens": tokens, "root": str(root),
                        "hashes": [str(h) for h in chain]})
    BLOCK_HASH.parent.mkdir(parents=True, exist_ok=True)
    write(BLOCK_HASH, {"block_size": BLOCK_SIZE}, vectors)


def make_draws():
    vectors = []
    for seed, name, dtype, source in [
        (0, "lm_head.weight", "F32", {"normal": 0.375}), (4, "model.embed_tokens.weight", "BF16", {"normal": 0.35}),
        (4000000000, "ü", "F16", {"normal": 1e-06}), (7, "", "F16", {"uniform": [-0.5, 0.5]}),
        (7, "model.norm.weight", "BF16", {"uniform": [3, 11]}), (1, "scales", "U8", {"uniform": [121, 125]}),
        (2, "blocks", "U8", {"bytes": ["00ffff", "18000f"]}),
    ]:
        piece = {"name": name, "dtype": dtype, "shape": [3, 7], "from": source}
        vectors.append({"seed": seed, "piece": piece, "bytes": weights.draw(seed, name, dtype, [3, 7], source).hex()})
    write(HERE / "draws.json", {}, vectors)


def write(path: pathlib.Path, head: dict, vectors):
    """JSON with one vector per line, for readable diffs."""
    lines = ",\n".join("  " + json.dumps(v, ensure_ascii=False) for v in vectors)
    opening = "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    path.write_text("{\n" + opening + "\"vectors\": [\n" + lines + "\n]\n}\n", "utf-8")
    print(f"{path.name}: {len(vectors)} vectors")


def make():
    make_philox()
    make_block_hash()
    make_draws()
