"""Checkpoints: saved so that a partial one is never mistaken for a complete one, loaded by any layout.

`folder/step-00000100/` is complete, because it is renamed to this only after everything in it is on disk. What was
being written when a run died has another name, and is removed by the next save.
"""

import json
import re
import shutil
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from trimaran.engine.checkpoint.sharded_tensors import Shard, ShardLoadPlanner, ShardSavePlanner, dequantized, shard_of
from trimaran.engine.optimizer.adam import MOMENTS, create_moments, set_step_count
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job, Mistake, Model
from trimaran.spec.files import sync_to_disk

STATE = "run.json"
COMPLETE = re.compile(r"step-\d{8,}")


@dataclass(frozen=True)
class TrainState:
    """Everything of a run that is not a tensor."""

    iteration: int = 0
    consumed: int = 0  # samples
    skipped: int = 0
    nan: int = 0
    loss_scale: dict[str, float] = field(default_factory=dict)


def write_state(checkpoint: Path, state: TrainState, job: Job) -> None:
    values = {"position": asdict(state), "job": job.model_dump(mode="json")}
    (checkpoint / STATE).write_text(json.dumps(values, indent=1))


def read_state(checkpoint: Path) -> tuple[TrainState, Job]:
    values = json.loads((checkpoint / STATE).read_text())
    return TrainState(**values["position"]), Job.from_json(json.dumps(values["job"]), trusted=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """From the oldest to the newest."""
    complete = [path for path in folder.glob("step-*") if COMPLETE.fullmatch(path.name)]
    return sorted(complete, key=lambda path: int(path.name[5:]))


def newest_checkpoint(folder: Path) -> Path | None:
    return next(reversed(complete_checkpoints(folder)), None)


class Checkpointer:
    """Saves and loads the checkpoints of one run. Every rank has one, and all call it together."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.world, self.saving = trainer, trainer.world, trainer.job.saving
        self.folder = Path(self.saving.folder) if self.saving.folder else None
        self.single = self.world.mesh is None
        if self.single:  # as intended
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        # Collectives of a write in the background must not interleave with those of training.
        background = self.folder is not None and self.saving.asynchronous and not self.single
        self.group = dist.new_group(backend="gloo") if background else None
        self.pending: tuple[Any, Path] | None = None
        self.saved_at = time.monotonic()

    @property
    def is_time(self) -> bool:
        """Whether saving.minutes have passed, by this rank's clock."""
        minutes = self.saving.minutes
        return minutes is not None and time.monotonic() - self.saved_at > 60 * minutes

    def is_due(self, iteration: int) -> bool:
        return self.saving.every is not None and iteration % self.saving.every == 0

    def save(self, progress: TrainState) -> None:
        """Does nothing where this iteration is saved already."""
        if self.folder is None:
            return
        self.finish()
        final = self.folder / f"step-{progress.iteration:08d}"
        partial = self.folder / f".{final.name}.partial"
        if self.world.rank == 0 and not final.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            for abandoned in self.folder.glob(".step-*.partial"):
                shutil.rmtree(abandoned)
            partial.mkdir()
            write_state(partial, progress, self.trainer.job)
        self._barrier()
        if final.exists():
            return
        tensors, shards = local_tensors(self.trainer)
        tensors = {name: dequantized(tensor) for name, tensor in tensors.items()}
        options: dict[str, Any] = {
            "storage_writer": dcp.FileSystemWriter(partial),
            "planner": ShardSavePlanner(shards),
            "no_dist": self.single,
        }
        if self.saving.asynchronous:
            self.pending = dcp.async_save(tensors, process_group=self.group, **options), partial
        else:
            dcp.save(tensors, **options)
            self._complete(partial)
        self.saved_at = time.monotonic()

    def finish(self) -> None:
        """Wait for the write in the background."""
        if self.pending is not None:
            future, partial = self.pending
            future.result()
            self.pending = None
            self._complete(partial)

    def _complete(self, partial: Path) -> None:
        """All ranks have written: rename the folder, and remove the oldest."""
        assert self.folder is not None
        self._barrier()
        if self.world.rank == 0:
            sync_to_disk(partial / STATE)
            sync_to_disk(partial)
            partial.rename(self.folder / partial.name[1:].removesuffix(".partial"))
            sync_to_disk(self.folder)
            # Renamed before it is removed: half a folder must not look complete.
            for old in complete_checkpoints(self.folder)[: -self.saving.keep]:
                shutil.rmtree(old.rename(self.folder / f".{old.name}.partial"))
        self._barrier()

    def _barrier(self) -> None:
        if not self.single:
            dist.barrier()

    def resume(self) -> TrainState:
        """From the newest complete checkpoint, if there is any."""
        path = newest_checkpoint(self.folder) if self.folder is not None else None
        if path is None:
            return TrainState()
        progress, job = read_state(path)
        check_model(job.model, self.trainer.job.model, path)
        optimizer = self.trainer.optimizer
        create_moments(optimizer)
        tensors, shards = local_tensors(self.trainer)
        reader, planner = dcp.FileSystemReader(path), ShardLoadPlanner(shards)
        with torch.no_grad():
            dcp.load(tensors, storage_reader=reader, planner=planner, no_dist=self.single)
        set_step_count(optimizer, progress.iteration - progress.skipped)
        self.trainer.weights.sync_compute_weights()
        self.trainer.scaler.restore(progress.loss_scale)
        return progress


def check_model(saved: Model, ours: Model, path: Path) -> None:
    """Names and padding may differ, because they change no value."""
    for name in Model.model_fields:
        was, now = getattr(saved, name), getattr(ours, name)
        if was != now and name not in ("name", "source", "padded_vocab"):
            raise Mistake(
                f"The checkpoint {path} is of another model: its {name} is {was}, the job's {now};"
                " give the job another saving.folder, or the model of the checkpoint."
            )


def local_tensors(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Shard]]:
    """Weights and Adam's moments of this rank by name, and which shard of the full tensor each is."""
    tensors, shards = {}, {}
    for master in trainer.weights.masters:
        state, shard = trainer.optimizer.state[master.value], shard_of(master, trainer.world, trainer.job.model)
        for kind, tensor in (("weights", master.value.detach()), *((moment, state[moment]) for moment in MOMENTS)):
            name = f"{kind}/{master.tensor.name}"
            tensors[name], shards[name] = tensor, shard
    return tensors, shards
