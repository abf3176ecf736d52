"""Full weights of a checkpoint, one tensor at a time, in one process: for export and sampling."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from trimaran.engine.checkpoint.checkpointer import STATE, newest_checkpoint, read_state
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
            state, self.job = read_state(self.path)
        except (OSError, ValueError, KeyError, TypeError):
            raise Mistake(f"{self.path / STATE} does not say what was saved; is {self.path} damaged?") from None
        self.iteration, self.model = state.iteration, self.job.model
        self.shapes = full_shapes(self.model)

    def read(self, name: str) -> Tensor:
        """The full tensor in fp32, the vocabulary without padding."""
        key = f"weights/{name}"
        tensors = {key: torch.empty(self.shapes[name])}
        try:
            with single_process():
                dcp.load(tensors, storage_reader=dcp.FileSystemReader(self.path), no_dist=True)
        except Exception as error:  # a damaged file is an EOFError, a RuntimeError, …, by version and place
            raise Mistake(
                f"{name} cannot be read from {self.path}: the checkpoint is damaged, or was removed for a newer one"
                f" ({type(error).__name__})."
            ) from None
        return tensors[key]


@contextmanager
def single_process() -> Iterator[None]:
    """Around DCP in one process: no warning about it, and failures are raised as what they were."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield
        except dcp.CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            # A full disk is raised a second time, as a RuntimeError, when the file is closed.
            raise (cause.__context__ if isinstance(cause.__context__, OSError) else cause) from None


def checkpoint_in(folder: Path) -> Path:
    if (folder / STATE).is_file():
        return folder
    newest = newest_checkpoint(folder) if folder.is_dir() else None
    if newest is None:
        what = "is not a folder" if not folder.is_dir() else "holds no complete checkpoint (step-00000100 or so)"
        raise Mistake(f"{folder} {what}; name the saving.folder of a run, or one of the steps in it.")
    return newest
