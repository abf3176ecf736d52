"""SHA-256 of every file of a checkpoint, in the format of sha256sum: `sha256sum -c SHA256SUMS` verifies it by hand.

Computed while the files are written. They show damage, as by a failing disk; whoever can replace the files can also
replace the digests.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trimaran.engine.checkpoint.folder import DamagedError

SUMS = "SHA256SUMS"
READ_BYTES = 2**22  # at once


def write_sums(folder: Path, digests: Mapping[str, str]) -> None:
    with (folder / SUMS).open("w", encoding="utf-8") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
        file.flush()
        os.fsync(file.fileno())


def read_sums(folder: Path) -> dict[str, str]:
    """Digests by file; none for a checkpoint of a version that wrote none."""
    try:
        lines = (folder / SUMS).read_text("utf-8").splitlines()
        rows = [line.split("  ", 1) for line in lines]
        sums = {name: digest for digest, name in rows}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise DamagedError(f"{SUMS} cannot be read") from None
    if any("/" in name or len(digest) != 64 for name, digest in sums.items()):
        raise DamagedError(f"{SUMS} is not a list of digests")
    return sums


def digest_of(path: Path, on_bytes: Callable[[int], object] = lambda count: None) -> str:
    sha = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(READ_BYTES):
            sha.update(block)
            on_bytes(len(block))
    return sha.hexdigest()


def damaged_file(
    folder: Path, sums: Iterable[tuple[str, str]], on_bytes: Callable[[int], object] = lambda count: None
) -> str | None:
    """The first of these files that is not as it was written, and how; None where all are."""
    for name, digest in sums:
        try:
            if digest_of(folder / name, on_bytes) != digest:
                return f"{name} does not match its digest"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


class Verification:
    """Of some of a checkpoint's files, in threads beside the reading of its tensors. `ranks`: that share the cores."""

    def __init__(self, folder: Path, sums: Iterable[tuple[str, str]], ranks: int = 1) -> None:
        self.pool = ThreadPoolExecutor(max_workers=max(1, min(4, (os.cpu_count() or 1) // ranks)))
        self.results = [self.pool.submit(damaged_file, folder, [each]) for each in sums]

    def damage(self) -> str | None:
        """Of the first file that is not as it was written. Waits for the threads."""
        self.pool.shutdown()
        return next((damage for future in self.results if (damage := future.result())), None)
