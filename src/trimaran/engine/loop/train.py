"""One rank's run of a Job: build the trainer, resume from the last checkpoint, step until the end or a stop signal."""

import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trimaran.data.source import source_of
from trimaran.engine.checkpoint.checkpointer import Checkpointer
from trimaran.engine.checkpoint.folder import newest_checkpoint
from trimaran.engine.kernels.fp8 import check_fp8_support
from trimaran.engine.loop.batches import batch
from trimaran.engine.loop.evaluation import evaluate
from trimaran.engine.loop.not_finite import report_not_finite
from trimaran.engine.metrics.reporter import MetricsReporter, PendingStep, record_time
from trimaran.engine.metrics.sinks import open_sinks
from trimaran.engine.parallel.world import init_world
from trimaran.engine.trainer import Requests, Trainer
from trimaran.processes import heartbeat as phases
from trimaran.processes.exit_codes import BAD_JOB, DONE, INTERRUPTED, NOT_FINITE, OUT_OF_MEMORY, RANK_FAILED
from trimaran.processes.heartbeat import Heartbeat
from trimaran.processes.rank import Rank
from trimaran.processes.ranks import run_ranks
from trimaran.processes.rendezvous import Rendezvous
from trimaran.processes.signals import caught_signals
from trimaran.spec import Job

END_PHASES = {DONE: phases.DONE, INTERRUPTED: phases.INTERRUPTED, NOT_FINITE: phases.NOT_FINITE}


@dataclass(frozen=True)
class TrainOptions:
    metrics: Path | None = None
    heartbeats: Path | None = None
    tensorboard: Path | None = None
    timeout: timedelta = timedelta(minutes=10)  # how long a rank waits for the others
    stop_on_nan: bool = False
    force: bool = False  # resume with other data, another seed or vocabulary than the checkpoint's


def run(job: Job, options: TrainOptions, rendezvous: Rendezvous | None) -> int:
    """Train in as many processes as the layout has devices. Returns the exit code."""
    devices = job.layout.devices
    end = run_ranks(
        devices, lambda rank: train(job, options, rank), options.timeout, rendezvous, heartbeats=options.heartbeats
    )
    reason = end.reason if end.iteration is None else describe_interrupt(job, end.iteration)
    if reason:
        print(f"trimaran: {reason}", file=sys.stderr, flush=True)
    if rendezvous is not None and end.code in (BAD_JOB, OUT_OF_MEMORY, RANK_FAILED):
        os._exit(end.code)  # without exit handlers: PyTorch's may wait for ranks that are gone
    return end.code


def describe_interrupt(job: Job, iteration: int) -> str:
    """Of a run that was ended before its ranks had stopped by themselves."""
    done = f"after iteration {iteration} of {job.steps}" if iteration else "before an iteration was done"
    newest = newest_checkpoint(Path(job.saving.folder)) if job.saving.folder else None
    saved = f"the newest checkpoint is {newest}" if newest else "there is no checkpoint"
    return f"interrupted {done}, without saving; {saved}."


def train(job: Job, options: TrainOptions, rank: Rank) -> int:
    """The exit code of this rank: done, interrupted or not finite; everything else is raised."""
    heartbeat = rank.heartbeat
    world = init_world(job, options.timeout, rank.store)
    if job.precision == "fp8":
        check_fp8_support(world.device)
    heartbeat.beat(phases.BUILDING)
    trainer = Trainer(job, world, skip_not_finite=options.stop_on_nan)
    checkpointer = Checkpointer(trainer)
    state = checkpointer.resume(options.force)
    is_last_rank = world.rank == world.size - 1  # which reports, as in Megatron
    with stop_signals() as stop:
        sinks = open_sinks(job, options.metrics, options.tensorboard, state.iteration > 0) if is_last_rank else []
        with closing(MetricsReporter(job, world, state, sinks)) as reporter:
            code = train_loop(trainer, checkpointer, stop, reporter, heartbeat, options.stop_on_nan)
    iteration = reporter.state.iteration
    if code == NOT_FINITE and not options.stop_on_nan and is_last_rank:
        print(
            f"trimaran: the loss or gradient of iteration {iteration} is not finite: the weights after it were not"
            " saved; --stop-on-nan stops at the first such step, and writes what it saw.",
            file=sys.stderr,
        )
    if code == INTERRUPTED and is_last_rank:
        saved = f", saved in {job.saving.folder}" if job.saving.folder else ""
        print(f"trimaran: interrupted after iteration {iteration} of {job.steps}{saved}.", file=sys.stderr)
    heartbeat.beat(END_PHASES[code], iteration)
    if dist.is_initialized():
        dist.destroy_process_group()
    return code


class StopSignal:
    """Whether a signal has come; all ranks learn of it with the next step's loss."""

    received = False


@contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """SIGTERM, Ctrl-C, SIGHUP of a closed terminal, and SIGUSR1, which SLURM sends before a time limit, end the run
    after the current step."""
    stop = StopSignal()

    def receive(*_: Any) -> None:
        stop.received = True

    before = {number: signal.signal(number, receive) for number in caught_signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train_loop(
    trainer: Trainer,
    checkpointer: Checkpointer,
    stop: StopSignal,
    reporter: MetricsReporter,
    heartbeat: Heartbeat,
    stop_on_nan: bool = False,
) -> int:
    """From the reporter's state to the job's last step. On a GPU each step is reported while the next one runs, so
    that the device never waits for the host."""
    job, world = trainer.job, trainer.world
    source, samples = source_of(job), job.samples
    held_out = source_of(job, "validation") if job.validation.every else None
    lag = 1 if world.device.type == "cuda" and not stop_on_nan else 0
    pending: list[PendingStep] = []
    consumed = reporter.state.consumed
    for iteration in range(reporter.state.iteration + 1, job.steps + 1):
        size = job.batch.size_after(consumed)
        with trainer.clock.host():
            inputs = batch(job, source, consumed, size, world.dp_rank, world.device)
        heartbeat.beat(phases.STEPPING, iteration)
        before = reporter.state
        consumed += size
        rate = job.recipe.rate_at(consumed, samples)
        requests = Requests(stop.received, world.rank == 0 and checkpointer.is_time)
        step = trainer.step(inputs, rate, requests)
        ended = record_time(world.device)
        pending.append(PendingStep(iteration, consumed, size, rate, step, step.totals(), ended))
        agreed = [reporter.report(pending.pop(0)) for _ in range(len(pending) - lag)]
        if stop_on_nan and not math.isfinite(float(step.loss if trainer.scaler.is_dynamic else step.grad_norm)):
            checkpointer.save(replace(before, loss_scale=trainer.scaler.state()))
            checkpointer.finish()
            report_not_finite(trainer, inputs, iteration, step)
            return NOT_FINITE
        stops, last = any(request.stop for request in agreed), iteration == job.steps
        saves = stops or last or any(request.save for request in agreed) or checkpointer.is_due(iteration)
        validates = job.validation.every is not None and (last or iteration % job.validation.every == 0)
        while pending and (saves or validates):
            reporter.report(pending.pop(0))
        if validates and held_out is not None:
            heartbeat.beat(phases.VALIDATING, iteration)
            reporter.report_validation(evaluate(trainer, held_out))
        if saves and reporter.is_finite:  # otherwise the weights are NaN, and older checkpoints are better
            heartbeat.beat(phases.SAVING, iteration)
            checkpointer.save(replace(reporter.state, loss_scale=trainer.scaler.state()), must=stops or last)
        if validates or saves:
            reporter.restart_clock()
        if stops and not last:
            checkpointer.finish()
            return INTERRUPTED
    checkpointer.finish()
    return DONE if reporter.is_finite else NOT_FINITE
