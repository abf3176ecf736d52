"""Checkpointer: saves so that a partial checkpoint is never mistaken for a complete one, and resumes under any layout
from the newest that is whole."""

import shutil
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata

from trimaran.engine.checkpoint.digests import Verification, read_sums
from trimaran.engine.checkpoint.folder import (
    STATE,
    DamagedError,
    TrainState,
    check_same_run,
    complete_checkpoints,
    newest_checkpoint,
    parse_state,
    read_state,
    write_state,
)
from trimaran.engine.checkpoint.sharded_tensors import (
    Shard,
    ShardLoadPlanner,
    ShardSavePlanner,
    dequantized,
    is_quantized,
    shard_of,
)
from trimaran.engine.checkpoint.storage import CheckpointReader, CheckpointWriter, cause_of, describe, read_metadata
from trimaran.engine.optimizer.adam import MOMENTS, create_moments, has_moments, set_step_count
from trimaran.engine.trainer import Trainer
from trimaran.processes.heartbeat import warn
from trimaran.spec import Mistake
from trimaran.spec.files import sync_to_disk

T = TypeVar("T")


class SaveError(Exception):
    """A checkpoint that could not be written; says why."""


class Checkpointer:
    """Saves and loads the checkpoints of one run. Every rank has one, and all call it together. What is on the disk is
    decided by rank 0 alone, because other nodes may see a shared file system a moment later."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.world, self.saving = trainer, trainer.world, trainer.job.saving
        self.folder = Path(self.saving.folder) if self.saving.folder else None
        self.single = self.world.mesh is None
        if self.single:  # as intended
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        background = self.folder is not None and self.saving.asynchronous
        # Collectives of a write in the background must not interleave with those of training.
        grouped = background and not self.single
        self.group = dist.new_group(backend="gloo", timeout=self.world.timeout) if grouped else None
        self.thread = ThreadPoolExecutor(max_workers=1) if background else None
        self.pending: Future[None] | None = None
        self.staged: dict[str, Tensor] = {}  # host memory that a write in the background reads, kept for the next
        self.saved_iteration = -1
        self.saved_at = time.monotonic()

    @property
    def is_time(self) -> bool:
        """Whether saving.minutes have passed, by this rank's clock."""
        minutes = self.saving.minutes
        return minutes is not None and time.monotonic() - self.saved_at > 60 * minutes

    def is_due(self, iteration: int) -> bool:
        return self.saving.every is not None and iteration % self.saving.every == 0

    def save(self, state: TrainState, must: bool = True) -> None:
        """Does nothing where this iteration is saved already. `must`: raise a SaveError where it cannot be written;
        otherwise rank 0 prints it, and training continues."""
        if self.folder is None:
            return
        self.finish(must=False)
        if state.iteration == self.saved_iteration:
            return
        self.saved_iteration, self.saved_at = state.iteration, time.monotonic()
        try:
            partial = self._from_rank_0(lambda: self._begin(state))
            tensors, shards = local_tensors(self.trainer)
            written = {name: tensor for name, tensor in tensors.items() if shards[name].writes}
            if self.thread is None:
                self._write({name: dequantized(tensor) for name, tensor in written.items()}, shards, partial)
            else:
                self.pending = self.thread.submit(self._write, self._stage(written), shards, partial)
        except SaveError as error:
            self._failed(error, must)

    def finish(self, must: bool = True) -> None:
        """Wait for the write in the background."""
        if self.pending is not None:
            try:
                self.pending.result()
            except SaveError as error:
                self._failed(error, must)
            finally:
                self.pending = None

    def _begin(self, state: TrainState) -> Path:
        assert self.folder is not None
        partial = self.folder / f".step-{state.iteration:08d}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for abandoned in self.folder.glob(".step-*.partial"):
                shutil.rmtree(abandoned)
            partial.mkdir()
            write_state(partial, state, self.trainer.job)
        except OSError as error:
            raise SaveError(f"{error.filename or partial}: {error.strerror}") from None
        return partial

    def _stage(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the host, pinned where they come from a GPU, that the next step does not change."""
        for name, tensor in tensors.items():
            if is_quantized(tensor):
                self.staged[name] = dequantized(tensor)
                continue
            if name not in self.staged:
                self.staged[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self.staged[name].copy_(tensor, non_blocking=True)
        if self.world.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return self.staged

    def _write(self, tensors: dict[str, Tensor], shards: dict[str, Shard], partial: Path) -> None:
        """Returns when all ranks have written, and on rank 0 when the checkpoint is complete: in the background too, so
        that a run killed from then on loses only what came after the state that was saved."""
        try:
            dcp.save(
                tensors,
                storage_writer=CheckpointWriter(partial),
                planner=ShardSavePlanner(shards),
                process_group=self.group,
                no_dist=self.single,
            )
        except dcp.CheckpointException as error:
            raise SaveError(describe(cause_of(error))) from None
        if self.world.rank == 0:
            try:
                self._complete(partial)
            except OSError as error:
                raise SaveError(f"{error.filename}: {error.strerror}") from None

    def _complete(self, partial: Path) -> None:
        """All ranks have written: rename the folder, and remove the oldest."""
        assert self.folder is not None
        sync_to_disk(partial / STATE)
        sync_to_disk(partial)
        partial.rename(self.folder / partial.name[1:].removesuffix(".partial"))
        sync_to_disk(self.folder)
        # Renamed before it is removed: half a folder must not look complete.
        for old in complete_checkpoints(self.folder)[: -self.saving.keep]:
            shutil.rmtree(old.rename(self.folder / f".{old.name}.partial"), ignore_errors=True)

    def _failed(self, error: SaveError, must: bool) -> None:
        """Its partial files are removed: they may be what fills the disk."""
        assert self.folder is not None
        iteration, self.saved_iteration = self.saved_iteration, -1
        if self.world.rank == 0:
            for partial in self.folder.glob(".step-*.partial"):
                shutil.rmtree(partial, ignore_errors=True)
        newest = newest_checkpoint(self.folder)
        kept = f"the newest is {newest.name}" if newest else "there is none"
        sentence = f"The checkpoint of iteration {iteration} could not be written: {error}; {kept} in {self.folder}."
        if must:
            raise SaveError(sentence)
        if self.world.rank == 0:
            warn(f"{sentence} Training continues.")

    def resume(self, force: bool = False) -> TrainState:
        """From the newest checkpoint that is whole, if there is any. A damaged one is set aside. `force`: also where
        data, seed or vocabulary are not those of the checkpoint."""
        if self.folder is None:
            return TrainState()
        folder, damaged = self.folder, list[tuple[Path, str]]()
        for name in self._from_rank_0(lambda: [path.name for path in reversed(complete_checkpoints(folder))]):
            try:
                state = self._load(folder / name, force)
            except DamagedError as why:
                damaged.append((folder / name, str(why)))
                continue
            if self.world.rank == 0:
                for path, reason in damaged:
                    set_aside(path, reason, resumed_from=name)
            self.saved_iteration = state.iteration
            return state
        if damaged:
            path, reason = damaged[0]
            raise Mistake(
                f"The checkpoint {path} is damaged: {reason}; {folder} has none that is whole to resume from: move it"
                " away to begin anew, or give the job another saving.folder."
            )
        return TrainState()

    def _load(self, path: Path, force: bool) -> TrainState:
        state, sums, metadata = self._from_rank_0(lambda: self._describe(path, force))
        verification = Verification(path, sorted(sums.items())[self.world.rank :: self.world.size], self.world.size)
        optimizer, failure = self.trainer.optimizer, None
        create_moments(optimizer)
        tensors, shards = local_tensors(self.trainer)
        try:
            with torch.no_grad():
                reader, planner = CheckpointReader(path, metadata), ShardLoadPlanner(shards)
                dcp.load(tensors, storage_reader=reader, planner=planner, no_dist=self.single)
        except dcp.CheckpointException as error:
            failure = describe(cause_of(error))
        damage = next((each for each in self._all_gather(verification.damage() or failure) if each), None)
        if damage:
            raise DamagedError(damage)
        set_step_count(optimizer, state.iteration - state.skipped)
        self.trainer.weights.sync_compute_weights()
        self.trainer.scaler.restore(state.loss_scale)
        return state

    def _describe(self, path: Path, force: bool) -> tuple[TrainState, dict[str, str], Metadata]:
        saved = parse_state(read_state(path))
        check_same_run(saved, self.trainer.job, path, force)
        return saved.state, read_sums(path), read_metadata(path)

    def _from_rank_0(self, function: Callable[[], T]) -> T:
        """What the function returns on rank 0, or raises there, on every rank."""
        result: list[tuple[T | None, Exception | None]] = [(None, None)]
        if self.world.rank == 0:
            try:
                result = [(function(), None)]
            except (Mistake, DamagedError, SaveError) as error:
                result = [(None, error)]
        if not self.single:
            dist.broadcast_object_list(result)
        value, raised = result[0]
        if raised is not None:
            raise raised
        return value  # type: ignore[return-value]

    def _all_gather(self, value: str | None) -> list[str | None]:
        values: list[str | None] = [value] * self.world.size
        if not self.single:
            dist.all_gather_object(values, value)
        return values


def set_aside(path: Path, reason: str, resumed_from: str) -> None:
    """Renamed, so that it is neither resumed from nor counted among those to keep."""
    other = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(other, ignore_errors=True)
    path.rename(other)
    warn(
        f"the checkpoint {path} is damaged: {reason}; it was renamed to {other.name}, and the run resumes from"
        f" {resumed_from}."
    )


def local_tensors(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Shard]]:
    """Weights and Adam's moments of this rank by name, and which shard of the full tensor each is."""
    if not has_moments(trainer.optimizer):  # no step was taken yet, or fp16 has skipped all
        trainer.weights.zero_grad()
        create_moments(trainer.optimizer)
        set_step_count(trainer.optimizer, 0)
    tensors, shards = {}, {}
    for master in trainer.weights.masters:
        state, shard = trainer.optimizer.state[master.value], shard_of(master, trainer.world, trainer.job.model)
        for kind, tensor in (("weights", master.value.detach()), *((moment, state[moment]) for moment in MOMENTS)):
            name = f"{kind}/{master.tensor.name}"
            tensors[name], shards[name] = tensor, shard
    return tensors, shards
