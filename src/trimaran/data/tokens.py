"""A data set: the tokens of PREFIX.bin, memory-mapped, and where its documents begin, from PREFIX.idx."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.data.megatron import FLOAT_TYPES, HEADER, MAGIC, TOKEN_TYPES, VERSION, bin_path, idx_path
from trimaran.spec import Mistake
from trimaran.spec.mistake import did_you_mean

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    prefix: Path
    tokens: npt.NDArray[Any]  # all of them, as stored
    starts: Ints  # of each document, and the end of the last

    @property
    def documents(self) -> int:
        return len(self.starts) - 1

    def document(self, number: int) -> npt.NDArray[Any]:
        return self.tokens[self.starts[number] : self.starts[number + 1]]


def prefix_of(path: str | Path) -> Path:
    """A data set is named by its prefix; either of its two files will do as well."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def open_tokens(path: str | Path) -> Tokens:
    """Checked as far as the index goes; the tokens themselves are looked at when they are read."""
    prefix = prefix_of(path)
    index, content = idx_path(prefix), bin_path(prefix)
    for file in (index, content):
        if not file.is_file():
            raise Mistake(_missing(prefix, file))
    dtype, sizes, documents = _read_index(index)
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    stated, found = int(starts[-1]) * dtype.itemsize, content.stat().st_size
    if stated != found:
        raise Mistake(
            f"{content} has {found:,} bytes, but {index.name} counts {int(starts[-1]):,} tokens of {dtype.itemsize}"
            f" bytes, which is {stated:,}: one of them is cut off or belongs to another data set."
        )
    tokens: npt.NDArray[Any] = np.empty(0, dtype)
    if found:
        tokens = np.memmap(content, dtype, "r").view(np.ndarray)
    return Tokens(prefix, tokens, starts if documents is None else starts[documents])


def _read_index(path: Path) -> tuple[np.dtype[Any], npt.NDArray[np.int32], Ints | None]:
    """Token type, sizes of sequences, and the sequences at which documents begin and end (None: each is one)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise Mistake(f"{path} is no index of Megatron's: it does not begin with MMIDIDX.")
    if len(head) < HEADER.size:
        raise Mistake(f"{path} is cut off: it has {size} bytes, and its header alone has {HEADER.size}.")
    _, version, code, count, indices = HEADER.unpack(head)
    if version != VERSION:
        raise Mistake(f"{path} has version {version} of Megatron's index, but only version {VERSION} is known.")
    if code in FLOAT_TYPES:
        raise Mistake(f"{path} says that {path.stem}.bin holds {FLOAT_TYPES[code]} numbers, which are no tokens.")
    if code not in TOKEN_TYPES:
        raise Mistake(f"{path} has dtype code {code}, which Megatron does not use; tokens have {_codes()}.")
    expected = HEADER.size + 12 * count + 8 * indices
    if size != expected:
        wrong = "is cut off" if size < expected else "is too long"
        raise Mistake(
            f"{path} {wrong}: {count:,} sequences and {indices:,} document indices need {expected:,} bytes,"
            f" but it has {size:,}."
        )
    raw = np.memmap(path, np.uint8, "r").view(np.ndarray)[HEADER.size :]
    sizes = raw[: 4 * count].view("<i4")
    offsets = raw[4 * count : 12 * count].view("<i8")
    documents = raw[12 * count :].view("<i8")
    dtype = np.dtype(TOKEN_TYPES[code])
    _check_sequences(path, sizes, offsets, dtype.itemsize)
    return dtype, sizes, _document_bounds(path, documents, count)


def _check_sequences(path: Path, sizes: npt.NDArray[np.int32], offsets: Ints, width: int) -> None:
    if not len(sizes):
        return
    if int(sizes.min()) < 0:
        at = int(np.argmax(sizes < 0))
        raise Mistake(f"{path} is damaged: sequence {at} has {int(sizes[at])} tokens.")
    meant = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=meant[1:])
    meant *= width
    if not np.array_equal(meant, offsets):
        at = int(np.argmax(meant != offsets))
        raise Mistake(
            f"{path} is damaged: sequence {at} should begin at byte {int(meant[at]):,}, behind those before it,"
            f" but its offset is {int(offsets[at]):,}."
        )


def _document_bounds(path: Path, indices: Ints, count: int) -> Ints | None:
    """Megatron's first tools for merging wrote no document indices: sequences behind the last are documents."""
    bounds = indices if len(indices) else np.zeros(1, np.int64)
    wrong = bounds[0] != 0 or int(bounds[-1]) > count or bool(np.any(np.diff(bounds) < 0))
    if wrong:
        raise Mistake(f"{path} is damaged: its document indices do not rise from 0 to the {count:,} sequences.")
    if len(bounds) == count + 1 and np.array_equal(bounds, np.arange(count + 1)):
        return None
    return np.concatenate([bounds, np.arange(int(bounds[-1]) + 1, count + 1)])


def _missing(prefix: Path, file: Path) -> str:
    known = [path.stem for path in prefix.parent.glob("*.idx")] if prefix.parent.is_dir() else []
    near = did_you_mean(prefix.name, [name for name in known if name != prefix.name])
    return (
        f"There is no {file}, so {prefix} is no data set: that is a pair of files, {prefix.name}.bin and"
        f" {prefix.name}.idx, which `trimaran data prepare … -o {prefix}` makes.{near}"
    )


def _codes() -> str:
    return ", ".join(str(code) for code in TOKEN_TYPES)
