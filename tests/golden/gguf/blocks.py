"""Makes blocks of every quantised type that Skein reads, and dequantises them with the `gguf` package.

Usage: blocks.py [OUT_DIR]   (pip install gguf==0.19.0)

Writes TYPE.blocks, random bytes with finite scales, and TYPE.values, float32. Rust tests require the same
bits.
"""

import pathlib
import sys

import gguf
import numpy as np

# Type: bytes per block, values per block, offsets of half-precision fields.
TYPES = {
    "Q4_0": (18, 32, [0]), "Q4_1": (20, 32, [0, 2]), "Q5_0": (22, 32, [0]), "Q5_1": (24, 32, [0, 2]),
    "Q8_0": (34, 32, [0]), "Q2_K": (84, 256, [80, 82]), "Q3_K": (110, 256, [108]), "Q4_K": (144, 256, [0, 2]),
    "Q5_K": (176, 256, [0, 2]), "Q6_K": (210, 256, [208]), "IQ4_NL": (18, 32, [0]), "MXFP4": (17, 32, []),
}
VALUES = 1536


def main() -> None:
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "blocks")
    out.mkdir(exist_ok=True)
    random = np.random.default_rng(27)
    for name, (size, values, halves) in TYPES.items():
        blocks = random.integers(0, 256, (VALUES // values, size), np.uint8)
        for at in halves:
            scale = (random.standard_normal(len(blocks)) * 10.0 ** random.integers(-7, 3, len(blocks))).astype(np.float16)
            blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
        found = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        assert found.dtype == np.float32 and found.size == VALUES
        (out / f"{name}.blocks").write_bytes(blocks.tobytes())
        (out / f"{name}.values").write_bytes(found.astype("<f4").tobytes())


main()
