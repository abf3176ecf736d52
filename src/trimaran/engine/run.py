"""One rank's run of a Job: build, step until the end or a stop, and tell what happened. Every rank calls `train`."""

import math
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from trimaran.engine.batches import Synthetic, batch
from trimaran.engine.failure import DONE, INTERRUPTED
from trimaran.engine.heartbeat import Heartbeat
from trimaran.engine.progress import Progress
from trimaran.engine.records import WARM_UP_ITERATIONS, Record, iteration_line, json_line, memory_lines, tflops
from trimaran.engine.trainer import Step, Trainer
from trimaran.engine.world import World, join
from trimaran.spec import Job

GIB = 2**30


@dataclass(frozen=True)
class Options:
    metrics: Path | None = None
    heartbeats: Path | None = None
    patience: timedelta = timedelta(minutes=10)  # how long a rank waits for the others


def train(job: Job, options: Options, store: Any = None) -> int:
    """The exit code of this rank: done, or interrupted; everything else is raised."""
    world = join(job, options.patience, store)
    heartbeat = Heartbeat(options.heartbeats, world.rank)
    heartbeat.beat("building")
    trainer = Trainer(job, world)
    with stop_signals() as stop, telling(job, options, world) as teller:
        code = loop(trainer, stop, teller, heartbeat)
    if code == INTERRUPTED and world.rank == world.size - 1:
        print(f"trimaran: interrupted after iteration {teller.told} of {job.steps}.", file=sys.stderr)
    heartbeat.beat("done" if code == DONE else "interrupted", teller.told)
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


def loop(trainer: Trainer, stop: Stop, teller: "Teller", heartbeat: Heartbeat) -> int:
    """On a GPU each step is told while the next one runs, so that the host never makes the device wait."""
    job, world = trainer.job, trainer.world
    source = Synthetic(job.model.vocab, job.model.seq_len, job.seed)
    lag = 1 if world.device.type == "cuda" else 0
    waiting: list[tuple[int, int, Step]] = []
    consumed = 0
    for iteration in range(1, job.steps + 1):
        size = job.batch.size_after(consumed)
        parts = batch(job, source, consumed, size, world.dp_rank, world.device)
        heartbeat.beat("stepping", iteration)
        consumed += size
        waiting.append((consumed, size, trainer.step(parts, stop.asked)))
        while len(waiting) > lag:
            if teller.tell(*waiting.pop(0)):
                return INTERRUPTED if iteration < job.steps else DONE
    for step in waiting:
        teller.tell(*step)
    return DONE


class Teller:
    """Knows the last step told; the last rank writes it down, as in Megatron."""

    def __init__(self, job: Job, world: World, progress: Progress | None = None, file: TextIO | None = None) -> None:
        self.job, self.world, self.file, self.progress = job, world, file, progress
        self.told, self.nan, self.peaks = 0, 0, [0.0] * job.layout.pp
        self.since = time.perf_counter()

    def tell(self, consumed: int, size: int, step: Step) -> bool:
        """Waits for the step. True: the ranks agreed to stop after it."""
        loss, norm, stop = float(step.loss), float(step.grad_norm), float(step.stop) > 0
        now = time.perf_counter()
        seconds, self.since = now - self.since, now
        self.told += 1
        self.nan += not math.isfinite(loss)
        measures = self.told == WARM_UP_ITERATIONS or self.told == self.job.steps or self.told % 50 == 0
        if measures:
            self.peaks = peak_memory_gib(self.world)
        if self.progress is not None:
            self._write(self._record(consumed, size, loss, norm, seconds), measures)
        return stop

    def _record(self, consumed: int, size: int, loss: float, norm: float, seconds: float) -> Record:
        return Record(
            iteration=self.told,
            iterations=self.job.steps,
            consumed_samples=consumed,
            consumed_tokens=consumed * self.job.model.seq_len,
            batch=size,
            loss=loss,
            grad_norm=norm,
            learning_rate=self.job.recipe.learning_rate,
            loss_scale=1.0,
            seconds=seconds,
            tokens_per_second=size * self.job.model.seq_len / seconds,
            tflops=tflops(self.job, size, seconds),
            peak_memory_gib=self.peaks,
            skipped=0,
            nan=self.nan,
            warm_up=self.told <= WARM_UP_ITERATIONS,
        )

    def _write(self, record: Record, with_memory: bool) -> None:
        assert self.progress is not None
        lines = [iteration_line(record, self.job.trainer.prints)]
        if with_memory and record.iteration == WARM_UP_ITERATIONS:
            lines += memory_lines(record.iteration, self.peaks, self.world.size // self.job.layout.pp)
        self.progress.show(lines, record)
        if self.file is not None:
            self.file.write(json_line(record) + "\n")
            self.file.flush()


@contextmanager
def telling(job: Job, options: Options, world: World) -> Iterator[Teller]:
    if world.rank != world.size - 1:
        yield Teller(job, world)
        return
    with Progress(job, sys.stdout) as progress:
        if options.metrics is None:
            yield Teller(job, world, progress)
        else:
            with options.metrics.open("w", encoding="utf-8") as file:
                yield Teller(job, world, progress, file)


def peak_memory_gib(world: World) -> list[float]:
    """Of each stage's fullest rank: what the allocator reserved on a GPU, the process's resident peak on a CPU."""
    if world.device.type == "cuda":
        mine = torch.cuda.max_memory_reserved(world.device)
    else:
        mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peaks = torch.zeros(world.layout.pp, device=world.device)
    peaks[world.pp_rank] = mine / GIB
    if world.mesh is not None:
        dist.all_reduce(peaks, dist.ReduceOp.MAX)
    return [round(peak, 4) for peak in peaks.tolist()]
