"""The files of a checkpoint: PyTorch's distributed checkpoint (DCP), with a digest of each, and read as data only.

DCP's `.metadata` is a pickle, which could run code when it is read. Here it may hold nothing but the few classes that
describe tensors: no object that DCP would unpickle in turn, and no file outside the checkpoint's folder.
"""

import hashlib
import io
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import torch
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trimaran.engine.checkpoint.digests import digest_of, write_sums
from trimaran.engine.checkpoint.folder import STATE, DamagedError
from trimaran.spec import Mistake

METADATA = ".metadata"
SHARD = re.compile(r"__\d+_\d+\.distcp")
_OF_METADATA = (
    *("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex", "StorageMeta"),
    "_MEM_FORMAT_ENCODING",
)
ALLOWED = {
    *(("torch.distributed.checkpoint.metadata", name) for name in _OF_METADATA),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch", "float32"),  # what checkpoints hold
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
}


class MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise DamagedError(
                f"{METADATA} refers to {module}.{name}, which no checkpoint of ours does: it may have been made to run"
                " code, and was not read further"
            )
        return super().find_class(module, name)


def read_metadata(checkpoint: Path) -> Metadata:
    """Only descriptions of tensors, in files of the same folder."""
    try:
        with (checkpoint / METADATA).open("rb") as file:
            metadata = MetadataUnpickler(file).load()
        tensors, chunks = metadata.state_dict_metadata.values(), metadata.storage_data.values()
        sound = all(isinstance(tensor, TensorStorageMetadata) for tensor in tensors)
        paths = [chunk.relative_path for chunk in chunks]
    except DamagedError:
        raise
    except OSError as error:
        raise DamagedError(f"{METADATA} cannot be read: {error.strerror}") from None
    except Exception as error:  # by the damage: UnpicklingError, EOFError, AttributeError, UnicodeDecodeError, …
        raise DamagedError(f"{METADATA} cannot be read ({type(error).__name__})") from None
    outside = next((path for path in paths if not isinstance(path, str) or not SHARD.fullmatch(path)), None)
    if outside is not None:
        raise DamagedError(f"{METADATA} names a file that is not part of a checkpoint ({str(outside)[:80]!r})")
    linked = next((path for path in set(paths) if (checkpoint / path).is_symlink()), None)
    if linked is not None:
        raise DamagedError(f"{linked} is a link to a file elsewhere")
    if not sound:
        raise DamagedError(f"{METADATA} describes something other than tensors")
    return cast(Metadata, metadata)


class CheckpointReader(FileSystemReader):
    """With metadata that `read_metadata` has read before: DCP would log its errors with their stacks."""

    def __init__(self, checkpoint: Path, metadata: Metadata) -> None:
        super().__init__(checkpoint)
        self.metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return replace(self.metadata, storage_meta=StorageMeta(load_id=self.load_id))


class HashingStream(io.RawIOBase):
    """A file that is written once, from begin to end, and its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sha = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha.update(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.file.tell()

    def flush(self) -> None:
        if not self.file.closed:
            self.file.flush()

    def fileno(self) -> int:
        """Asked for before an fsync, which does not see what is still in Python's buffer."""
        self.file.flush()
        return self.file.fileno()


class HashingFileSystem(FileSystem):
    def __init__(self) -> None:
        self.digests: dict[str, str] = {}  # by the file's name

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as stream:
            hashing = HashingStream(cast(IO[bytes], stream))
            yield hashing
        self.digests[Path(path).name] = hashing.sha.hexdigest()


class HashedChunk(NamedTuple):
    """Where a chunk was written, and the digest of that file: what each rank tells the one that writes the metadata."""

    stored: Any
    digest: str


class CheckpointWriter(FileSystemWriter):
    """Expects run.json in the folder, and writes everything else."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.fs = self.hashing = HashingFileSystem()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = super().write_data(plan, planner).value()
        hashed: Future[list[WriteResult]] = Future()
        hashed.set_result([replace(result, storage_data=self._hashed(result.storage_data)) for result in results])
        return hashed

    def _hashed(self, stored: Any) -> HashedChunk:
        return HashedChunk(stored, self.hashing.digests[stored.relative_path])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        chunks = [result.storage_data for of_rank in results for result in of_rank]
        stored = [[replace(result, storage_data=result.storage_data.stored) for result in r] for r in results]
        super().finish(metadata, stored)
        folder = Path(self.path)
        sums = {chunk.stored.relative_path: chunk.digest for chunk in chunks}
        write_sums(folder, {**sums, METADATA: digest_of(folder / METADATA), STATE: digest_of(folder / STATE)})


def cause_of(error: CheckpointException) -> BaseException:
    """What failed on the first of the ranks. Memory that ran out is no fault of the checkpoint, and raised at once."""
    cause, _ = next(iter(error.failures.values()))
    if isinstance(cause, (MemoryError, torch.OutOfMemoryError)):
        raise cause from None
    # A full disk is raised a second time, as a RuntimeError, when the file is closed.
    return cause.__context__ if isinstance(cause.__context__, OSError) else cause


def describe(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.strerror:
        return f"{cause.filename}: {cause.strerror}" if cause.filename else cause.strerror
    line = str(cause).partition("\n")[0][:200]
    return line if isinstance(cause, (DamagedError, Mistake)) else f"{type(cause).__name__}: {line}"
