"""What is told of a run: after every step its record, on the last rank to people and files."""

import math
import resource
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.cost.memory import GIB
from trimaran.engine.checkpoint.position import Position
from trimaran.engine.metrics.clock import Mark, mark, seconds_between
from trimaran.engine.metrics.progress import Progress
from trimaran.engine.metrics.records import WARM_UP_ITERATIONS, Record, tflops
from trimaran.engine.metrics.sinks import JsonLines, Outlet, TensorBoard
from trimaran.engine.metrics.spikes import Spikes
from trimaran.engine.parallel.world import World
from trimaran.engine.trainer import Asks, Step
from trimaran.spec import Job

MEMORY_EVERY = 50  # iterations between two questions to all ranks
RECENT = 20  # iterations that tell the present speed


@dataclass(frozen=True)
class Done:
    """A step that was taken, and may still be under way on the device."""

    iteration: int
    consumed: int  # samples, this step's included
    size: int
    rate: float
    step: Step
    totals: Tensor  # of the step: loss, gradient norm, stop, save; on their way to the host until it ended
    ended: Mark


class Teller:
    """Knows the last step told; the last rank writes it down, as in Megatron."""

    def __init__(self, job: Job, world: World, at: Position, outlets: Sequence[Outlet] = ()) -> None:
        self.job, self.world, self.at, self.outlets = job, world, at, outlets
        self.samples = job.samples
        self.spikes = Spikes()
        self.recent: deque[tuple[int, float]] = deque(maxlen=RECENT)  # samples and seconds of the last iterations
        self.told = 0  # since this start
        self.peaks = [0.0] * job.layout.pp
        self.pause()

    def pause(self) -> None:
        """What was done since the last step belongs to no iteration."""
        self.since = mark(self.world.device)

    def tell(self, done: Done) -> Asks:
        """Waits for the step. What all ranks agreed to do after it."""
        seconds, self.since = seconds_between(self.since, done.ended), done.ended
        loss, norm, stop, save = done.totals.tolist()
        asks = Asks(stop > 0, save > 0)
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
        if self.outlets:
            record = self._record(done, loss, norm, seconds)
            for outlet in self.outlets:
                outlet.record(record)
        return asks

    def tell_validation(self, loss: float) -> None:
        for outlet in self.outlets:
            outlet.validation(self.at.iteration, loss)

    def _record(self, done: Done, loss: float, norm: float, seconds: float) -> Record:
        tokens = self.job.model.seq_len
        if self.told > 1:  # the first is slower than all others
            self.recent.append((done.size, seconds))
        samples, spent = (sum(column) for column in zip(*(self.recent or [(done.size, seconds)]), strict=True))
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
            spike=self.spikes.is_spike(loss),
            seconds_left=(self.samples - done.consumed) * spent / samples,
        )


@contextmanager
def telling(
    job: Job, world: World, at: Position, metrics: Path | None = None, tensorboard: Path | None = None
) -> Iterator[Teller]:
    """A run that goes on appends to its metrics."""
    if world.rank != world.size - 1:
        yield Teller(job, world, at)
        return
    with ExitStack() as open_ones:
        outlets: list[Outlet] = [Progress(job, sys.stdout)]
        if metrics is not None:
            outlets.append(JsonLines(metrics, goes_on=at.iteration > 0))
        if tensorboard is not None:
            outlets.append(TensorBoard(tensorboard))
        yield Teller(job, world, at, [open_ones.enter_context(outlet) for outlet in outlets])


def peak_memory_gib(world: World) -> list[float]:
    """Of each stage's fullest rank: what the allocator reserved on a GPU, the process's resident peak on a CPU."""
    if world.device.type == "cuda":
        mine = torch.cuda.max_memory_reserved(world.device)
    else:
        mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peaks = torch.zeros(world.layout.pp, device=None if world.mesh is None else world.device)
    peaks[world.pp_rank] = mine / GIB
    if world.mesh is not None:
        dist.all_reduce(peaks, dist.ReduceOp.MAX)
    return [round(peak, 4) for peak in peaks.tolist()]
