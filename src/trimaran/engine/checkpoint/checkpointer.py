"""Checkpoints: saved so that a half-written one is never taken for good, loaded by any layout.

`folder/step-00000100/` is complete, because it got this name only after everything in it was on disk. What was being
written when a run died has another name, and is removed by the next save.
"""

import json
import re
import shutil
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from trimaran.engine.checkpoint.disk import sync_to_disk
from trimaran.engine.checkpoint.position import Position
from trimaran.engine.checkpoint.sharded_tensors import LoadParts, Part, SaveParts, part_of, unpacked
from trimaran.engine.optimizer.adam import MOMENTS, create_moments, set_step_count
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job, Mistake, Model

STATE = "run.json"
COMPLETE = re.compile(r"step-\d{8,}")


def newest(folder: Path) -> Path | None:
    """The last complete checkpoint."""
    found = [path for path in folder.glob("step-*") if COMPLETE.fullmatch(path.name)]
    return max(found, key=lambda path: int(path.name[5:]), default=None)


class Checkpoints:
    """Of one run. Every rank has one; saving and loading are done by all together."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.world, self.saving = trainer, trainer.world, trainer.job.saving
        self.folder = Path(self.saving.folder) if self.saving.folder else None
        self.alone = self.world.mesh is None
        if self.alone:  # which is meant
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        # What is written in the background must not meet the training's own collectives.
        background = self.folder is not None and self.saving.asynchronous and not self.alone
        self.group = dist.new_group(backend="gloo") if background else None
        self.pending: tuple[Any, Path] | None = None
        self.saved_at = time.monotonic()

    @property
    def is_time(self) -> bool:
        """By this rank's clock."""
        minutes = self.saving.minutes
        return minutes is not None and time.monotonic() - self.saved_at > 60 * minutes

    def is_due(self, iteration: int) -> bool:
        return self.saving.every is not None and iteration % self.saving.every == 0

    def save(self, position: Position) -> None:
        """Nothing, where this position is saved already."""
        if self.folder is None:
            return
        self.finish()
        final = self.folder / f"step-{position.iteration:08d}"
        partial = self.folder / f".{final.name}.partial"
        if self.world.rank == 0 and not final.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(".step-*.partial"):
                shutil.rmtree(left)
            partial.mkdir()
            state = {"position": asdict(position), "job": self.trainer.job.model_dump(mode="json")}
            (partial / STATE).write_text(json.dumps(state, indent=1))
        self._meet()
        if final.exists():
            return
        tensors, parts = live_tensors(self.trainer)
        tensors = {name: unpacked(tensor) for name, tensor in tensors.items()}
        options: dict[str, Any] = {
            "storage_writer": dcp.FileSystemWriter(partial),
            "planner": SaveParts(parts),
            "no_dist": self.alone,
        }
        if self.saving.asynchronous:
            self.pending = dcp.async_save(tensors, process_group=self.group, **options), partial
        else:
            dcp.save(tensors, **options)
            self._complete(partial)
        self.saved_at = time.monotonic()

    def finish(self) -> None:
        """Wait for what is being written in the background."""
        if self.pending is not None:
            future, partial = self.pending
            future.result()
            self.pending = None
            self._complete(partial)

    def _complete(self, partial: Path) -> None:
        """All ranks have written: give the folder its name, and remove the oldest."""
        assert self.folder is not None
        self._meet()
        if self.world.rank == 0:
            sync_to_disk(partial / STATE)
            sync_to_disk(partial)
            partial.rename(self.folder / partial.name[1:].removesuffix(".partial"))
            sync_to_disk(self.folder)
            complete = sorted(path for path in self.folder.glob("step-*") if COMPLETE.fullmatch(path.name))
            for old in complete[: -self.saving.keep]:  # first the name: half a folder must not look complete
                shutil.rmtree(old.rename(self.folder / f".{old.name}.partial"))
        self._meet()

    def _meet(self) -> None:
        if not self.alone:
            dist.barrier()

    def resume(self) -> Position:
        """Go on from the newest complete one, if there is any."""
        path = newest(self.folder) if self.folder is not None else None
        if path is None:
            return Position()
        state = json.loads((path / STATE).read_text())
        check_model(Job.from_json(json.dumps(state["job"]), trusted=True).model, self.trainer.job.model, path)
        position = Position(**state["position"])
        load(self.trainer, path, position.iteration - position.skipped)
        self.trainer.scaler.restore(position.loss_scale)
        return position


def check_model(saved: Model, ours: Model, path: Path) -> None:
    """Names and padding may differ, for they change no value."""
    for name in Model.model_fields:
        was, wanted = getattr(saved, name), getattr(ours, name)
        if was != wanted and name not in ("name", "source", "padded_vocab"):
            raise Mistake(
                f"The checkpoint {path} is of another model: its {name} is {was}, the job's {wanted};"
                " give the job another saving.folder, or the model of the checkpoint."
            )


def live_tensors(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Part]]:
    """Weights and Adam's moments of this rank by name, and where each belongs."""
    tensors, parts = {}, {}
    for master in trainer.weights.masters:
        state, part = trainer.optimizer.state[master.value], part_of(master, trainer.world, trainer.job.model)
        for kind, tensor in (("weights", master.value.detach()), *((moment, state[moment]) for moment in MOMENTS)):
            name = f"{kind}/{master.tensor.name}"
            tensors[name], parts[name] = tensor, part
    return tensors, parts


def load(trainer: Trainer, path: Path, steps: int) -> None:
    """Fill weights and moments from a checkpoint that has seen so many steps."""
    create_moments(trainer.optimizer)
    tensors, parts = live_tensors(trainer)
    with torch.no_grad():
        dcp.load(
            tensors,
            storage_reader=dcp.FileSystemReader(path),
            planner=LoadParts(parts),
            no_dist=trainer.world.mesh is None,
        )
    set_step_count(trainer.optimizer, steps)
    trainer.weights.sync_compute_weights()
