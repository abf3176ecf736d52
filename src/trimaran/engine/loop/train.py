"""One rank's run of a Job: build, go on from the last checkpoint, step until the end or a stop."""

import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trimaran.data.source import source_of
from trimaran.engine.checkpoint.checkpointer import Checkpoints
from trimaran.engine.kernels.fp8 import check_fp8_support
from trimaran.engine.loop.batches import batch
from trimaran.engine.loop.evaluation import evaluate
from trimaran.engine.metrics.clock import mark
from trimaran.engine.metrics.not_finite import leave_evidence
from trimaran.engine.metrics.reporter import Done, Teller, telling
from trimaran.engine.parallel.world import init_world
from trimaran.engine.trainer import Asks, Step, Trainer
from trimaran.processes import heartbeat as phases
from trimaran.processes.exit_codes import BAD_JOB, DONE, INTERRUPTED, NOT_FINITE, OUT_OF_MEMORY, RANK_FAILED
from trimaran.processes.heartbeat import Heartbeat
from trimaran.processes.ranks import Rank, run_ranks
from trimaran.processes.rendezvous import Rendezvous
from trimaran.spec import Job


@dataclass(frozen=True)
class TrainOptions:
    metrics: Path | None = None
    heartbeats: Path | None = None
    tensorboard: Path | None = None
    patience: timedelta = timedelta(minutes=10)  # how long a rank waits for the others
    stop_on_nan: bool = False


def run(job: Job, options: TrainOptions, rendezvous: Rendezvous | None) -> int:
    """Train in as many processes as the layout has devices. Gives the exit code."""
    devices = job.layout.devices
    end = run_ranks(devices, lambda rank: train(job, options, rank), options.patience, rendezvous)
    if end.reason:
        print(f"trimaran: {end.reason}", file=sys.stderr, flush=True)
    if rendezvous is not None and end.code in (BAD_JOB, OUT_OF_MEMORY, RANK_FAILED):
        os._exit(end.code)  # without exit handlers: PyTorch's may wait for ranks that are gone
    return end.code


def train(job: Job, options: TrainOptions, rank: Rank) -> int:
    """The exit code of this rank: done, interrupted or not finite; everything else is raised."""
    world = init_world(job, options.patience, rank.store)
    if job.precision == "fp8":
        check_fp8_support(world.device)
    heartbeat = Heartbeat(options.heartbeats, world.rank)
    heartbeat.beat(phases.BUILDING)
    trainer = Trainer(job, world, guarded=options.stop_on_nan)
    checkpoints = Checkpoints(trainer)
    position = checkpoints.resume()
    with stop_signals() as stop, telling(job, world, position, options.metrics, options.tensorboard) as teller:
        code = loop(trainer, checkpoints, stop, teller, heartbeat, options.stop_on_nan)
    if code == INTERRUPTED and world.rank == world.size - 1:
        saved = f", saved in {job.saving.folder}" if job.saving.folder else ""
        print(f"trimaran: interrupted after iteration {teller.at.iteration} of {job.steps}{saved}.", file=sys.stderr)
    ends = {DONE: phases.DONE, INTERRUPTED: phases.INTERRUPTED, NOT_FINITE: phases.NOT_FINITE}
    heartbeat.beat(ends[code], teller.at.iteration)
    if dist.is_initialized():
        dist.destroy_process_group()
    return code


class Stop:
    """Set by a signal, agreed on by all ranks with the next step's loss."""

    asked = False


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """SIGTERM and Ctrl-C, and SIGUSR1, which SLURM sends before a time limit, end the run after the present step."""
    stop = Stop()

    def ask(*_: Any) -> None:
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def loop(
    trainer: Trainer,
    checkpoints: Checkpoints,
    stop: Stop,
    teller: Teller,
    heartbeat: Heartbeat,
    stop_on_nan: bool = False,
) -> int:
    """From where the teller is to the job's last step. On a GPU each step is told while the next one runs, so that the
    host never makes the device wait."""
    job, world = trainer.job, trainer.world
    source, samples = source_of(job), job.samples
    unseen = source_of(job, "validation") if job.validation.every else None
    lag = 1 if world.device.type == "cuda" and not stop_on_nan else 0
    waiting: list[Done] = []
    consumed = teller.at.consumed
    for iteration in range(teller.at.iteration + 1, job.steps + 1):
        size = job.batch.size_after(consumed)
        parts = batch(job, source, consumed, size, world.dp_rank, world.device)
        heartbeat.beat(phases.STEPPING, iteration)
        before = teller.at
        consumed += size
        rate = job.recipe.rate_at(consumed, samples)
        asks = Asks(stop.asked, world.rank == 0 and checkpoints.is_time)
        step = trainer.step(parts, rate, asks)
        waiting.append(Done(iteration, consumed, size, rate, step, step.totals(), mark(world.device)))
        heard = [teller.tell(waiting.pop(0)) for _ in range(len(waiting) - lag)]
        if stop_on_nan and not math.isfinite(float(step.loss if trainer.scaler.is_dynamic else step.grad_norm)):
            checkpoints.save(replace(before, loss_scale=trainer.scaler.state()))
            checkpoints.finish()
            stopped(trainer, parts, iteration, step)
            return NOT_FINITE
        stops, last = any(ask.stop for ask in heard), iteration == job.steps
        saves = stops or last or any(ask.save for ask in heard) or checkpoints.is_due(iteration)
        validates = job.validation.every is not None and (last or iteration % job.validation.every == 0)
        while waiting and (saves or validates):
            teller.tell(waiting.pop(0))
        if validates and unseen is not None:
            heartbeat.beat(phases.VALIDATING, iteration)
            teller.tell_validation(evaluate(trainer, unseen))
        if saves:
            heartbeat.beat(phases.SAVING, iteration)
            checkpoints.save(replace(teller.at, loss_scale=trainer.scaler.state()))
        if validates or saves:
            teller.pause()
        if stops and not last:
            checkpoints.finish()
            return INTERRUPTED
    checkpoints.finish()
    return DONE


def stopped(trainer: Trainer, batch: dict[str, Tensor], iteration: int, step: Step) -> None:
    """What the run was stopped by: on disk from every rank, in a sentence from the first."""
    folder = Path(trainer.job.saving.folder or ".") / f"not-finite-{iteration:08d}"
    leave_evidence(folder, trainer, batch, iteration, step)
    if trainer.world.rank == 0:
        saved = f"; the checkpoint before it is in {trainer.job.saving.folder}" if trainer.job.saving.folder else ""
        print(
            f"trimaran: the loss of iteration {iteration} is {float(step.loss):.4g} and its gradient's norm"
            f" {float(step.grad_norm):.4g}: stopped, nothing was updated by it{saved}; the batch, and which tensors are"
            f" not finite, are in {folder}.",
            file=sys.stderr,
        )
