"""The stored form of model.safetensors, two thirds of its size: bfloat16 without the redundancy of exponents.

    python packed.py unpack       writes model.safetensors, which git ignores, unless it is there
    python packed.py pack         writes model.safetensors.packed, after training
    python packed.py copy FOLDER  writes the model as a directory of its own

The file is read as 16-bit words. Of each, the exponent goes to one plane, sign and mantissa to the other:

    u32   words
    u32   Adler-32 of model.safetensors
    u8    sign << 7 | mantissa, for each word
    ...   the exponents, deflated. Huffman's codes alone, as they repeat nothing: 2.6 bits each

`models/src/packed.rs` unpacks the same in the binary.
"""

import os
import pathlib
import shutil
import struct
import sys
import zlib

HERE = pathlib.Path(__file__).resolve().parent
PLAIN, PACKED = HERE / "model.safetensors", HERE / "model.safetensors.packed"


def unpacked(packed: bytes) -> bytes:
    count, checksum = struct.unpack("<II", packed[:8])
    rotated = bytearray(2 * count)  # each word has the sign at its end
    rotated[1::2] = zlib.decompress(packed[8 + count:], -15)
    low = int.from_bytes(packed[8:8 + count], "little")
    ones, sevens = (int.from_bytes(bytes([mask]) * count, "little") for mask in (0x01, 0x7F))
    rotated[0::2] = ((low & sevens) << 1 | low >> 7 & ones).to_bytes(count, "little")
    whole = int.from_bytes(rotated, "little")
    most, sign = (int.from_bytes(mask * count, "little") for mask in (b"\xff\x7f", b"\x01\x00"))
    plain = (whole >> 1 & most | (whole & sign) << 15).to_bytes(2 * count, "little")
    assert zlib.adler32(plain) == checksum, f"{PACKED} is damaged; restore it (git checkout)"
    return plain


def packed(plain: bytes) -> bytes:
    words = memoryview(plain).cast("H")
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    exponents = deflate.compress(bytes(word >> 7 & 0xFF for word in words)) + deflate.flush()
    rest = bytes(word >> 8 & 0x80 | word & 0x7F for word in words)
    return struct.pack("<II", len(words), zlib.adler32(plain)) + rest + exponents


def unpack() -> pathlib.Path:
    """The model's directory, with model.safetensors."""
    stored = PACKED.read_bytes()
    if not PLAIN.exists():
        draft = HERE / f"model.safetensors.{os.getpid()}"
        draft.write_bytes(unpacked(stored))
        draft.replace(PLAIN)
    elif zlib.adler32(PLAIN.read_bytes()) != struct.unpack("<I", stored[4:8])[0]:
        sys.exit(f"{PLAIN} is not what {PACKED.name} has: pack it if it is newly trained, else remove it")
    return HERE


def copy(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True)
    for file in HERE.glob("*.json"):
        shutil.copy(file, folder)
    (folder / PLAIN.name).write_bytes(unpacked(PACKED.read_bytes()))


if __name__ == "__main__":
    if sys.argv[1:] == ["unpack"]:
        unpack()
    elif sys.argv[1:2] == ["copy"] and len(sys.argv) == 3:
        copy(pathlib.Path(sys.argv[2]))
    elif sys.argv[1:] == ["pack"]:
        PACKED.write_bytes(packed(PLAIN.read_bytes()))
        assert unpacked(PACKED.read_bytes()) == PLAIN.read_bytes()
    else:
        sys.exit(__doc__)
