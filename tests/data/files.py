"""Megatron's token files written by the letter of its format, independently of the product, for tests to read."""

import struct
from collections.abc import Sequence
from pathlib import Path

CODES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


def write_set(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], code: int = 8) -> Path:
    """Documents of sequences of tokens."""
    letter = CODES[code]
    sequences = [sequence for document in documents for sequence in document]
    prefix.with_name(prefix.name + ".bin").write_bytes(
        b"".join(struct.pack(f"<{len(sequence)}{letter}", *sequence) for sequence in sequences)
    )
    offsets, indices = [], [0]
    at = 0
    for sequence in sequences:
        offsets.append(at)
        at += len(sequence) * struct.calcsize(f"<{letter}")
    for document in documents:
        indices.append(indices[-1] + len(document))
    sizes = [len(sequence) for sequence in sequences]
    prefix.with_name(prefix.name + ".idx").write_bytes(index(code, sizes, offsets, indices))
    return prefix


def index(code: int, sizes: Sequence[int], offsets: Sequence[int], indices: Sequence[int], version: int = 1) -> bytes:
    count = len(sizes)
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<Q", version)
        + struct.pack("<B", code)
        + struct.pack("<Q", count)
        + struct.pack("<Q", len(indices))
        + struct.pack(f"<{count}i", *sizes)
        + struct.pack(f"<{count}q", *offsets)
        + struct.pack(f"<{len(indices)}q", *indices)
    )
