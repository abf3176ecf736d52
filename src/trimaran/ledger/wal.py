"""The -wal file beside a ledger: what was added last, until SQLite merges it. https://sqlite.org/fileformat2.html#walformat

SQLite takes one whose header is damaged for an empty one, and deletes one beside an empty file: trials that were
acknowledged would be lost.
"""

import struct
from pathlib import Path

from trimaran.spec import Mistake

_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_MAGIC = 0x377F0682  # plus 1 where checksums are of big-endian words


def has_pending_wal(path: Path) -> bool:
    """Whether there is a -wal file with content; a Mistake where SQLite would ignore it."""
    wal = Path(f"{path.resolve()}-wal")
    try:
        with wal.open("rb") as file:
            header, more = file.read(_HEADER.size), file.read(1)
    except FileNotFoundError:
        return False
    if more and (path.stat().st_size == 0 or not _is_valid(header)):
        what = "is damaged" if path.stat().st_size else f"lies beside {path}, which has become empty"
        raise Mistake(
            f"{path}-wal {what}, and it holds the newest trials of {path}; restore both from a copy, or move it"
            " away to use the ledger without them."
        )
    return bool(more)


def _is_valid(header: bytes) -> bool:
    magic, *_, first, second = _HEADER.unpack(header)
    if magic & ~1 != _MAGIC:
        return False
    words = struct.unpack(">6I" if magic & 1 else "<6I", header[:24])
    a = b = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        a = (a + even + b) % 2**32
        b = (b + odd + a) % 2**32
    return (a, b) == (first, second)
