"""A dataset while it is being written: a kill at any moment loses only the work since the last save.

PREFIX.bin.partial and PREFIX.sizes.partial grow; PREFIX.state.partial says how much of them is valid and how far the
inputs were read. It is replaced atomically, after both were synced to disk. PREFIX.idx appears when all is done.
"""

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from trimaran.data.indexed_dataset import LARGEST_DOCUMENT, write_index
from trimaran.data.inputs import InputPosition, TextBatch
from trimaran.data.manifest import Manifest, Request
from trimaran.spec import Mistake
from trimaran.spec.files import sync_to_disk, write_text


@dataclass(frozen=True)
class PrepareState:
    request: Request
    place: InputPosition = field(default_factory=InputPosition)  # the key in files of 0.1
    done: NonNegativeInt = 0
    documents: NonNegativeInt = 0
    tokens: NonNegativeInt = 0
    characters: NonNegativeInt = 0
    empty: NonNegativeInt = 0
    bad: NonNegativeInt = 0
    finished: bool = False


class PartialDataset:
    """Locked by one process at a time."""

    def __init__(self, prefix: Path, dtype: np.dtype[Any]) -> None:
        self.prefix, self.dtype = prefix, dtype
        self.bin_file: BinaryIO | None = None
        self.bin = Path(f"{prefix}.bin.partial")
        self.sizes = Path(f"{prefix}.sizes.partial")
        self.state_path = Path(f"{prefix}.state.partial")
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

    def load_state(self) -> PrepareState | None:
        try:
            return TypeAdapter(PrepareState).validate_json(self.state_path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise Mistake(
                f"{self.state_path} is damaged, so what was prepared cannot be resumed; --overwrite starts again."
            ) from None

    def resume(self, state: PrepareState) -> None:
        """Append after what `state` counts; whatever was written after it is truncated."""
        self.state = state
        self.bin_file = None if state.finished and not self.bin.exists() else self.bin.open("ab")
        for file, size in ((self.bin_file, state.tokens * self.dtype.itemsize), (self.sizes_file, 4 * state.documents)):
            if file is None:
                continue
            if os.fstat(file.fileno()).st_size < size:
                raise Mistake(f"{file.name} is shorter than {self.state_path} says; --overwrite starts again.")
            file.truncate(size)
            file.seek(size)

    def append(self, tokens: npt.NDArray[Any], sizes: npt.NDArray[np.int64], batch: TextBatch) -> None:
        """The tokens of a batch; documents without tokens are dropped."""
        assert self.bin_file is not None
        if len(sizes) and int(sizes.max()) > LARGEST_DOCUMENT:
            raise Mistake(f"A document has {int(sizes.max()):,} tokens, but the format allows {LARGEST_DOCUMENT:,}.")
        kept = sizes[sizes > 0]
        self.bin_file.write(tokens.tobytes())
        self.sizes_file.write(kept.astype("<i4").tobytes())
        now = self.state
        self.state = replace(
            now,
            place=batch.position,
            done=batch.done,
            documents=now.documents + len(kept),
            tokens=now.tokens + len(tokens),
            characters=now.characters + batch.characters,
            bad=now.bad + batch.bad,
            empty=now.empty + len(sizes) - len(kept),
        )

    def save(self) -> None:
        for file in (self.bin_file, self.sizes_file):
            if file is not None:
                file.flush()
                os.fsync(file.fileno())
        write_text(self.state_path, json.dumps(asdict(self.state)))
        sync_to_disk(self.state_path.parent)

    def finish(self, manifest: Manifest) -> None:
        """Every step can be repeated. An index never lies beside tokens of another dataset, and a finished dataset is
        replaced only when all of the new one is on the disk."""
        self.state = replace(self.state, finished=True)
        self.save()
        new_index, new_manifest = Path(f"{self.prefix}.idx.partial"), Path(f"{self.prefix}.json.partial")
        index, manifest_file = Path(f"{self.prefix}.idx"), Path(f"{self.prefix}.json")
        sizes = np.memmap(self.sizes, "<i4", "r") if self.state.documents else np.empty(0, "<i4")
        try:
            write_index(new_index, self.dtype, sizes)
            sync_to_disk(new_index)
            write_text(new_manifest, json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n")
        except (OSError, Mistake):
            new_index.unlink(missing_ok=True)
            raise
        if self.bin.exists():
            manifest_file.unlink(missing_ok=True)
            index.unlink(missing_ok=True)
            self.bin.replace(f"{self.prefix}.bin")
        new_index.replace(index)
        new_manifest.replace(manifest_file)
        sync_to_disk(index.parent)
        self.state_path.unlink()
        self.sizes.unlink()

    def keep(self) -> None:
        """After an error: what was written, as far as the disk takes it, or else up to the save before."""
        try:
            if self.state.documents:
                self.save()
        except (OSError, Mistake):
            pass
        if not self.state_path.exists():
            self.discard()

    def discard(self) -> None:
        """Start again; a dataset finished before stays until this one is."""
        self.state_path.unlink(missing_ok=True)
        self.bin.unlink(missing_ok=True)

    def close(self) -> None:
        if not self.state_path.exists():
            self.sizes.unlink(missing_ok=True)
        for file in (self.bin_file, self.sizes_file):
            with suppress(OSError):  # a full disk does not take what is still in the buffer either
                if file is not None:
                    file.close()
