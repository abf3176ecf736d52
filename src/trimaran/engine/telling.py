"""What is told of a run: after every step its record, on the last rank to people and files."""

import json
import math
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

from trimaran.cost.memory import GIB
from trimaran.engine.clock import Mark, mark, seconds_between
from trimaran.engine.position import Position
from trimaran.engine.progress import Progress
from trimaran.engine.records import (
    WARM_UP_ITERATIONS,
    Record,
    iteration_line,
    json_line,
    memory_lines,
    tflops,
    validation_line,
)
from trimaran.engine.trainer import Asks, Step
from trimaran.engine.world import World
from trimaran.spec import Job

MEMORY_EVERY = 50  # iterations between two questions to all ranks


@dataclass(frozen=True)
class Done:
    """A step that was taken, and may still be under way on the device."""

    iteration: int
    consumed: int  # samples, this step's included
    size: int
    rate: float
    step: Step
    ended: Mark


class Teller:
    """Knows the last step told; the last rank writes it down, as in Megatron."""

    def __init__(
        self, job: Job, world: World, at: Position, progress: Progress | None = None, file: TextIO | None = None
    ) -> None:
        self.job, self.world, self.at, self.file, self.progress = job, world, at, file, progress
        self.told = 0  # since this start
        self.peaks = [0.0] * job.layout.pp
        self.pause()

    def pause(self) -> None:
        """What was done since the last step belongs to no iteration."""
        self.since = mark(self.world.device)

    def tell(self, done: Done) -> Asks:
        """Waits for the step. What all ranks agreed to do after it."""
        loss, norm = float(done.step.loss), float(done.step.grad_norm)
        asks = Asks(float(done.step.stop) > 0, float(done.step.save) > 0)
        seconds, self.since = seconds_between(self.since, done.ended), done.ended
        self.told += 1
        self.at = replace(
            self.at,
            iteration=done.iteration,
            consumed=done.consumed,
            skipped=self.at.skipped + done.step.skipped,
            nan=self.at.nan + (not math.isfinite(loss)),
        )
        last = done.iteration == self.job.steps
        measures = self.told == WARM_UP_ITERATIONS or last or self.told % MEMORY_EVERY == 0
        if measures:
            self.peaks = peak_memory_gib(self.world)
        if self.progress is not None:
            self._write(self._record(done, loss, norm, seconds))
        return asks

    def tell_validation(self, loss: float) -> None:
        if self.progress is not None:
            self.progress.say(validation_line(self.at.iteration, loss))
        if self.file is not None:
            self.file.write(json.dumps({"iteration": self.at.iteration, "validation_loss": loss}) + "\n")

    def _record(self, done: Done, loss: float, norm: float, seconds: float) -> Record:
        tokens = self.job.model.seq_len
        return Record(
            iteration=done.iteration,
            iterations=self.job.steps,
            consumed_samples=done.consumed,
            consumed_tokens=done.consumed * tokens,
            batch=done.size,
            loss=loss,
            grad_norm=norm,
            learning_rate=done.rate,
            loss_scale=done.step.loss_scale,
            seconds=seconds,
            tokens_per_second=done.size * tokens / seconds,
            tflops=tflops(self.job, done.size, seconds),
            peak_memory_gib=self.peaks,
            skipped=self.at.skipped,
            nan=self.at.nan,
            warm_up=self.told <= WARM_UP_ITERATIONS,
        )

    def _write(self, record: Record) -> None:
        assert self.progress is not None
        lines = [iteration_line(record, self.job.trainer.prints)]
        if self.told == WARM_UP_ITERATIONS:
            lines += memory_lines(record.iteration, self.peaks, self.world.size // self.job.layout.pp)
        self.progress.show(lines, record)
        if self.file is not None:
            self.file.write(json_line(record) + "\n")
            self.file.flush()


@contextmanager
def telling(job: Job, metrics: Path | None, world: World, at: Position) -> Iterator[Teller]:
    """A run that goes on appends to its metrics."""
    if world.rank != world.size - 1:
        yield Teller(job, world, at)
        return
    with Progress(job, sys.stdout) as progress:
        if metrics is None:
            yield Teller(job, world, at, progress)
        else:
            with metrics.open("a" if at.iteration else "w", encoding="utf-8") as file:
                yield Teller(job, world, at, progress, file)


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
