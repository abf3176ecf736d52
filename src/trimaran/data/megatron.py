"""Megatron's format of token files: PREFIX.bin is the tokens, PREFIX.idx says where sequences and documents begin.

The index: 9 bytes of magic, version, dtype code, number of sequences n, number of document indices d; then int32
sizes[n], int64 byte offsets[n], int64 document indices[d], which begin with 0 and count sequences.
"""

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAGIC, VERSION = b"MMIDIDX\0\0", 1
HEADER = struct.Struct("<9sQBQQ")
TOKEN_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
FLOAT_TYPES = {6: "float64", 7: "float32 or float64"}  # 7 differs between Megatron's forks; neither holds tokens
LARGEST_DOCUMENT = 2**31 - 1  # tokens: sizes are int32
_CHUNK = 2**20


def token_type(vocab: int) -> np.dtype[np.generic]:
    """What Megatron's tools choose: uint16 under 65,500 tokens, else int32."""
    return np.dtype("<u2" if vocab < 65_500 else "<i4")


def type_code(dtype: np.dtype[np.generic]) -> int:
    return next(code for code, name in TOKEN_TYPES.items() if np.dtype(name) == dtype)


def bin_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".idx")


def write_index(path: Path, dtype: np.dtype[np.generic], sizes: npt.NDArray[np.int32]) -> None:
    """An index of documents that are one sequence each, a chunk at a time: `sizes` may be a memory map."""
    count = len(sizes)
    with path.open("wb") as out:
        out.write(HEADER.pack(MAGIC, VERSION, type_code(dtype), count, count + 1))
        for start in range(0, count, _CHUNK):
            out.write(np.asarray(sizes[start : start + _CHUNK], "<i4").tobytes())
        before = 0
        for start in range(0, count, _CHUNK):
            ends = before + np.cumsum(sizes[start : start + _CHUNK], dtype=np.int64)
            offsets = np.concatenate([[before], ends[:-1]]) * dtype.itemsize
            out.write(offsets.astype("<i8").tobytes())
            before = int(ends[-1])
        for start in range(0, count + 1, _CHUNK):
            out.write(np.arange(start, min(start + _CHUNK, count + 1), dtype="<i8").tobytes())
