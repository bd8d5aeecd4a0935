#!/usr/bin/env python3
"""Makes internal/gguf/testdata/python-gguf.gguf with the gguf Python package (0.19.0)
and numpy. The file is written by that package's GGUFWriter and holds

- metadata of every value type, with the alignment set to 64;
- for each supported tensor type T a tensor "T" of random blocks and a tensor
  "T.want", F32, with what gguf.quants.dequantize makes of them.

The Go tests read it with their own reader and must find the same bits.

usage: make-gguf-goldens.py                  write the file
       make-gguf-goldens.py --read FILE      list FILE as the gguf package reads it
       make-gguf-goldens.py --digest FILE    SHA-256 of some dequantised tensors of a model
"""
import hashlib
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

TARGET = pathlib.Path(__file__).resolve().parent.parent / "internal/gguf/testdata/python-gguf.gguf"

# Where each type keeps its f16 scales within a block.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
ELEMENTS = 2048  # of each type, as 2 rows


def halves(rng, n):
    """n random finite f16 bit patterns: NaN and infinity have no portable bits once multiplied."""
    h = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    return np.where(h & 0x7C00 == 0x7C00, h & 0x83FF, h).astype(np.uint16)


def blocks(rng, t):
    """ELEMENTS elements of type t, as an array of bytes [2, bytes of a row]."""
    if t == T.F16:
        return halves(rng, ELEMENTS).view(np.uint8).reshape(2, -1)
    elems, size = gguf.GGML_QUANT_SIZES[t]
    n = ELEMENTS // elems
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    if t in SCALES:
        b[0], b[1] = 0, 0xFF  # both ends of every packed field, but for the scales
        for at in SCALES[t]:
            h = halves(rng, n)
            h[2:6] = [0x0001, 0x83FF, 0x7BFF, 0x8000]  # subnormals, the largest, minus zero
            b[:, at:at + 2] = h.reshape(-1, 1).view(np.uint8)
    return b.reshape(2, -1)


def write():
    rng = np.random.default_rng(20260101)
    TARGET.parent.mkdir(exist_ok=True)
    w = gguf.GGUFWriter(TARGET, "llama")
    w.add_custom_alignment(64)
    for name, v in [("uint8", 200), ("int8", -100), ("uint16", 60000), ("int16", -30000), ("uint32", 4000000000),
                    ("int32", -2000000000), ("uint64", 1 << 63), ("int64", -(1 << 62)), ("float32", 0.1), ("float64", 0.1)]:
        getattr(w, "add_" + name)("test." + name, v)
    w.add_bool("test.bool", True)
    w.add_string("test.string", "caf\u00e9 \U0001f600\n\0end")
    w.add_array("test.strings", ["", "a", "\u0120the", "\u4f60\u597d"])
    w.add_array("test.ints", [1, -2, 2147483647, -2147483648])
    w.add_array("test.floats", [0.5, -1.25, 3e38])
    w.add_array("test.nested", [[1, 2], [3]])
    for t in [T.F32, T.F16, T.BF16, *SCALES]:
        b = blocks(rng, t)
        want = np.ascontiguousarray(gguf.quants.dequantize(b, t))
        assert want.shape == (2, ELEMENTS // 2) and want.dtype == np.float32
        w.add_tensor(t.name, b, raw_dtype=t)
        w.add_tensor(t.name + ".want", want)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(TARGET.name, TARGET.stat().st_size, "bytes")


def read(path):
    r = gguf.GGUFReader(path)
    for key, field in r.fields.items():
        print(key, [t.name for t in field.types], repr(field.contents())[:100])
    for t in r.tensors:
        print(t.name, t.tensor_type.name, [int(d) for d in t.shape], hashlib.sha256(t.data.tobytes()).hexdigest()[:16])


def digest(path):
    for t in gguf.GGUFReader(path).tensors:
        if t.name.startswith("blk.0.") or not t.name.startswith("blk."):
            x = np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), dtype="<f4")
            print(t.name, t.tensor_type.name, hashlib.sha256(x.tobytes()).hexdigest())


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write()
        case ["--read", path]:
            read(path)
        case ["--digest", path]:
            digest(path)
        case _:
            sys.exit(__doc__)
