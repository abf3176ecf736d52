"""A data set while it is being written, so that a kill at any moment costs only the work since the last save.

PREFIX.bin.partial and PREFIX.sizes.partial grow; PREFIX.state.partial says how much of them counts and how far the
inputs were read. It is replaced, atomically, only after both are on the disk. PREFIX.idx appears when all is there.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from trimaran.data.inputs import Place
from trimaran.data.megatron import LARGEST_DOCUMENT, bin_path, idx_path, write_index
from trimaran.data.record import Record, Request, record_path
from trimaran.spec import Mistake


@dataclass(frozen=True)
class State:
    request: Request
    place: Place = field(default_factory=Place)
    done: int = 0
    documents: int = 0
    tokens: int = 0
    characters: int = 0
    empty: int = 0
    bad: int = 0
    finished: bool = False


class Partial:
    """Held by one process at a time."""

    def __init__(self, prefix: Path, dtype: np.dtype[Any]) -> None:
        self.prefix, self.dtype = prefix, dtype
        self.bin_file: BinaryIO | None = None
        self.bin, self.sizes, self.state_path = (self._path(name) for name in ("bin", "sizes", "state"))
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
            self.sizes_file: BinaryIO = self.sizes.open("ab")
        except OSError as error:
            raise Mistake(f"{prefix} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(self.sizes_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.sizes_file.close()
            raise Mistake(f"{prefix} is being prepared by another process right now.") from None

    def saved(self) -> State | None:
        try:
            values: dict[str, Any] = json.loads(self.state_path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        return State(**{**values, "request": Request(**values["request"]), "place": Place(**values["place"])})

    def begin(self, state: State) -> None:
        """Go on behind what `state` counts, whatever was written after it."""
        self.state = state
        self.bin_file = None if state.finished and not self.bin.exists() else self.bin.open("ab")
        for file, size in ((self.bin_file, state.tokens * self.dtype.itemsize), (self.sizes_file, 4 * state.documents)):
            if file is None:
                continue
            if os.fstat(file.fileno()).st_size < size:
                raise Mistake(f"{file.name} is shorter than {self.state_path} says; --overwrite starts anew.")
            file.truncate(size)
            file.seek(size)

    def append(self, tokens: npt.NDArray[Any], sizes: npt.NDArray[np.int64], state: State) -> None:
        """Documents without tokens are left out. `state` has what is known beside them."""
        assert self.bin_file is not None
        if len(sizes) and int(sizes.max()) > LARGEST_DOCUMENT:
            raise Mistake(f"A document has {int(sizes.max()):,} tokens, but the format ends at {LARGEST_DOCUMENT:,}.")
        kept = sizes[sizes > 0]
        self.bin_file.write(tokens.tobytes())
        self.sizes_file.write(kept.astype("<i4").tobytes())
        now = self.state
        self.state = replace(
            state,
            documents=now.documents + len(kept),
            tokens=now.tokens + len(tokens),
            empty=now.empty + len(sizes) - len(kept),
        )

    def save(self) -> None:
        for file in (self.bin_file, self.sizes_file):
            if file is not None:
                file.flush()
                os.fsync(file.fileno())
        _replace(self.state_path, json.dumps(asdict(self.state)))

    def finish(self, record: Record) -> None:
        """Every step may be repeated. An index is never beside tokens of another set."""
        self.state = replace(self.state, finished=True)
        self.save()
        new = self._path("idx")
        sizes = np.memmap(self.sizes, "<i4", "r") if self.state.documents else np.empty(0, "<i4")
        write_index(new, self.dtype, sizes)
        with new.open("rb") as file:
            os.fsync(file.fileno())
        if self.bin.exists():
            record_path(self.prefix).unlink(missing_ok=True)
            idx_path(self.prefix).unlink(missing_ok=True)
            self.bin.replace(bin_path(self.prefix))
        new.replace(idx_path(self.prefix))
        _replace(record_path(self.prefix), json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n")
        self.state_path.unlink()
        self.sizes.unlink()

    def drop(self) -> None:
        """Start anew; what was finished before stays until this is."""
        self.state_path.unlink(missing_ok=True)
        self.bin.unlink(missing_ok=True)

    def close(self) -> None:
        if self.bin_file is not None:
            self.bin_file.close()
        if not self.state_path.exists():
            self.sizes.unlink(missing_ok=True)
        self.sizes_file.close()

    def _path(self, name: str) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.{name}.partial")


def _replace(path: Path, text: str) -> None:
    """Whole or not at all, and on the disk."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
