"""Full weights of a checkpoint, one tensor at a time, in one process: for export and sampling."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from trimaran.engine.checkpoint.digests import Verification, read_sums
from trimaran.engine.checkpoint.folder import (
    STATE,
    DamagedError,
    complete_checkpoints,
    newest_checkpoint,
    parse_state,
    read_state,
)
from trimaran.engine.checkpoint.storage import CheckpointReader, cause_of, describe, read_metadata
from trimaran.processes.out_of_memory import is_out_of_memory
from trimaran.spec import Layout, Mistake, Model
from trimaran.spec.tensors import VOCABULARY, stage_tensors


def full_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, in its order, the vocabulary without padding."""
    shapes = {tensor.name: tensor.shape for tensor in stage_tensors(model, Layout(), 0)}
    return {name: (model.vocab, *shape[1:]) if name in VOCABULARY else shape for name, shape in shapes.items()}


class SavedCheckpoint:
    """A complete checkpoint: `folder/step-00000100`, or the newest one in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.path = checkpoint_in(folder)
        try:
            saved = parse_state(read_state(self.path))
            self.metadata = read_metadata(self.path)
            self.verification = Verification(self.path, read_sums(self.path).items())
        except DamagedError as why:
            raise self._mistake(str(why)) from None
        self.job, self.iteration, self.model = saved.job, saved.state.iteration, saved.job.model
        self.shapes = full_shapes(self.model)

    def read(self, name: str) -> Tensor:
        """The full tensor in fp32, the vocabulary without padding."""
        key = f"weights/{name}"
        tensors = {key: torch.empty(self.shapes[name])}
        try:
            with single_process():
                dcp.load(tensors, storage_reader=CheckpointReader(self.path, self.metadata), no_dist=True)
        except Exception as error:  # a damaged file is an EOFError, a RuntimeError, …, by version and place
            if is_out_of_memory(str(error)) or isinstance(error, MemoryError):
                raise
            why = self.verification.damage() or describe(error)
            raise self._mistake(f"{name} cannot be read, because {why}") from None
        return tensors[key]

    def verify(self) -> None:
        """After the last tensor was read: a Mistake where a file is not as it was written."""
        if damage := self.verification.damage():
            raise self._mistake(damage)

    def _mistake(self, why: str) -> Mistake:
        others = [path.name for path in complete_checkpoints(self.path.parent) if path != self.path]
        older = f"; there is also {others[-1]}" if others else ""
        return Mistake(f"The checkpoint {self.path} is damaged, or was removed for a newer one: {why}{older}.")


@contextmanager
def single_process() -> Iterator[None]:
    """Around DCP in one process: no warning about it, and failures are raised as what they were."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield
        except dcp.CheckpointException as error:
            raise cause_of(error) from None


def checkpoint_in(folder: Path) -> Path:
    if (folder / STATE).is_file():
        return folder
    newest = newest_checkpoint(folder) if folder.is_dir() else None
    if newest is None:
        what = "is not a folder" if not folder.is_dir() else "holds no complete checkpoint (step-00000100 or so)"
        raise Mistake(f"{folder} {what}; name the saving.folder of a run, or one of the steps in it.")
    return newest
