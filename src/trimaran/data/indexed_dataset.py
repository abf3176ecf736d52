"""Megatron's indexed dataset: PREFIX.bin has the tokens, PREFIX.idx says where sequences and documents begin.

The index: 9 bytes of magic, version, dtype code, number of sequences n, number of document indices d; then int32
sizes[n], int64 byte offsets[n], int64 document indices[d], which begin with 0 and count sequences.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.spec import Mistake
from trimaran.spec.mistake import did_you_mean

MAGIC, VERSION = b"MMIDIDX\0\0", 1
HEADER = struct.Struct("<9sQBQQ")
TOKEN_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
FLOAT_TYPES = {6: "float64", 7: "float32 or float64"}  # 7 differs between Megatron's forks; neither holds tokens
LARGEST_DOCUMENT = 2**31 - 1  # tokens: sizes are int32
_CHUNK = 2**20

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IndexedDataset:
    prefix: Path
    tokens: npt.NDArray[Any]  # all of them, as stored: a memory map
    starts: Ints  # of each document, and the end of the last

    @property
    def documents(self) -> int:
        return len(self.starts) - 1

    def document(self, number: int) -> npt.NDArray[Any]:
        return self.tokens[self.starts[number] : self.starts[number + 1]]


def dataset_prefix(path: str | Path) -> Path:
    """A dataset is named by its prefix; the path of either file works as well."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def token_dtype(vocab: int) -> np.dtype[np.generic]:
    """As Megatron's tools choose it: uint16 under 65,500 tokens, else int32."""
    return np.dtype("<u2" if vocab < 65_500 else "<i4")


def write_index(path: Path, dtype: np.dtype[np.generic], sizes: npt.NDArray[np.int32]) -> None:
    """An index of documents that are one sequence each, written in chunks: `sizes` may be a memory map."""
    count = len(sizes)
    code = next(code for code, name in TOKEN_TYPES.items() if np.dtype(name) == dtype)
    with path.open("wb") as out:
        out.write(HEADER.pack(MAGIC, VERSION, code, count, count + 1))
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


def open_dataset(path: str | Path) -> IndexedDataset:
    """The index is validated; tokens are checked when they are read."""
    prefix = dataset_prefix(path)
    index, content = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for file in (index, content):
        if not file.is_file():
            raise Mistake(_missing_file(prefix, file))
    dtype, starts, documents = _read_index(index)
    stated, found = int(starts[-1]) * dtype.itemsize, content.stat().st_size
    if stated != found:
        raise Mistake(
            f"{content} has {found:,} bytes, but {index.name} counts {int(starts[-1]):,} tokens of {dtype.itemsize}"
            f" bytes, which is {stated:,}: one of them is truncated or belongs to another dataset."
        )
    tokens: npt.NDArray[Any] = np.empty(0, dtype)
    if found:
        tokens = np.memmap(content, dtype, "r").view(np.ndarray)
    return IndexedDataset(prefix, tokens, starts if documents is None else starts[documents])


def _read_index(path: Path) -> tuple[np.dtype[Any], Ints, Ints | None]:
    """Token dtype, starts of sequences and the end of the last, and the sequences at which documents begin and end
    (None: each is one)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise Mistake(f"{path} is not a Megatron index: it does not begin with MMIDIDX.")
    if len(head) < HEADER.size:
        raise Mistake(f"{path} is truncated: it has {size} bytes, less than the {HEADER.size} of its header.")
    _, version, code, count, indices = HEADER.unpack(head)
    if version != VERSION:
        raise Mistake(f"{path} has version {version} of Megatron's index, but only version {VERSION} is supported.")
    if code in FLOAT_TYPES:
        raise Mistake(f"{path} says that {path.stem}.bin holds {FLOAT_TYPES[code]}, not tokens.")
    if code not in TOKEN_TYPES:
        known = ", ".join(str(code) for code in TOKEN_TYPES)
        raise Mistake(f"{path} has dtype code {code}, which Megatron does not use; tokens have {known}.")
    expected = HEADER.size + 12 * count + 8 * indices
    if size != expected:
        state = "is truncated" if size < expected else "is too long"
        raise Mistake(
            f"{path} {state}: {count:,} sequences and {indices:,} document indices need {expected:,} bytes,"
            f" but it has {size:,}."
        )
    raw = np.memmap(path, np.uint8, "r").view(np.ndarray)[HEADER.size :]
    sizes = raw[: 4 * count].view("<i4")
    offsets = raw[4 * count : 12 * count].view("<i8")
    documents = raw[12 * count :].view("<i8")
    dtype = np.dtype(TOKEN_TYPES[code])
    negative = np.flatnonzero(sizes < 0)
    if len(negative):
        raise Mistake(f"{path} is damaged: sequence {negative[0]} has {sizes[negative[0]]} tokens.")
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    wrong = np.flatnonzero(starts[:-1] * dtype.itemsize != offsets)
    if len(wrong):
        at = wrong[0]
        raise Mistake(
            f"{path} is damaged: sequence {at} should begin at byte {starts[at] * dtype.itemsize:,}, after those before"
            f" it, but its offset is {offsets[at]:,}."
        )
    return dtype, starts, _document_bounds(path, documents, count)


def _document_bounds(path: Path, indices: Ints, count: int) -> Ints | None:
    """Megatron's first merge tools wrote no document indices: sequences after the last index are documents."""
    bounds = indices if len(indices) else np.zeros(1, np.int64)
    wrong = bounds[0] != 0 or int(bounds[-1]) > count or bool(np.any(np.diff(bounds) < 0))
    if wrong:
        raise Mistake(f"{path} is damaged: its document indices do not rise from 0 to the {count:,} sequences.")
    if len(bounds) == count + 1 and np.array_equal(bounds, np.arange(count + 1)):
        return None
    return np.concatenate([bounds, np.arange(int(bounds[-1]) + 1, count + 1)])


def _missing_file(prefix: Path, file: Path) -> str:
    known = [path.stem for path in prefix.parent.glob("*.idx")] if prefix.parent.is_dir() else []
    close = did_you_mean(prefix.name, [name for name in known if name != prefix.name])
    return (
        f"There is no {file}, but the dataset {prefix} is a pair of files, {prefix.name}.bin and {prefix.name}.idx,"
        f" which `trimaran data prepare … -o {prefix}` writes.{close}"
    )
