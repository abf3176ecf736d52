"""MetricsReporter: reads the metrics of each step when it has ended on the device; the last rank, as in Megatron,
writes them to its sinks."""

import math
import resource
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.cost.flops import FORMULAS, TrainingStep
from trimaran.cost.memory import GIB
from trimaran.engine.checkpoint.folder import TrainState
from trimaran.engine.metrics.sinks import MetricSink, StepMetrics
from trimaran.engine.metrics.spikes import SpikeDetector
from trimaran.engine.metrics.stragglers import Straggler, StragglerDetector
from trimaran.engine.parallel.world import World
from trimaran.engine.trainer import Requests, StepResult
from trimaran.processes.heartbeat import warn
from trimaran.spec import Job
from trimaran.spec.job import WARM_UP_ITERATIONS

MEMORY_EVERY = 50  # iterations between two reductions of the peak memory over all ranks
RECENT = 20  # iterations whose speed gives the time left

Timestamp = float | torch.cuda.Event


def record_time(device: torch.device) -> Timestamp:
    """The moment when everything launched on the device so far has ended, known only then."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: Timestamp, second: Timestamp) -> float:
    """Waits for the second."""
    if isinstance(first, float):
        assert isinstance(second, float)
        return second - first
    assert not isinstance(second, float)
    second.synchronize()
    return float(first.elapsed_time(second)) / 1e3


@dataclass(frozen=True)
class PendingStep:
    """A step that was launched, and may still run on the device."""

    iteration: int
    consumed: int  # samples, this step's included
    batch: int
    rate: float
    result: StepResult
    totals: Tensor  # loss, gradient norm, stop, save, seconds of every rank: valid on the host once the step has ended
    ended: Timestamp


class MetricsReporter:
    """Holds the state of training after the last step that was reported."""

    def __init__(self, job: Job, world: World, state: TrainState, sinks: Sequence[MetricSink] = ()) -> None:
        self.job, self.world, self.state, self.sinks = job, world, state, list(sinks)
        self.samples = job.samples
        self.spikes = SpikeDetector()
        self.stragglers = StragglerDetector(job.layout, host_names_of(world))
        self.recent: deque[tuple[int, float]] = deque(maxlen=RECENT)  # samples and seconds of the last iterations
        self.reported = 0  # steps since this start
        self.is_finite = True  # the weights after the last step
        self.peaks = [0.0] * job.layout.pp
        self.restart_clock()

    def restart_clock(self) -> None:
        """What was done since the last step, such as saving, counts for no iteration."""
        self.since = record_time(self.world.device)

    def report(self, step: PendingStep) -> Requests:
        """Waits for the step. Returns what all ranks agreed to do after it."""
        seconds, self.since = seconds_between(self.since, step.ended), step.ended
        loss, norm, stop, save, *local_seconds = step.totals.tolist()
        self.reported += 1
        self.is_finite = math.isfinite(loss) and (step.result.skipped or math.isfinite(norm))
        self.state = replace(
            self.state,
            iteration=step.iteration,
            consumed=step.consumed,
            skipped=self.state.skipped + step.result.skipped,
            nan=self.state.nan + (not math.isfinite(loss)),
        )
        is_last = step.iteration == self.job.steps
        if self.reported == WARM_UP_ITERATIONS or is_last or self.reported % MEMORY_EVERY == 0:
            self.peaks = peak_memory_gib(self.world)
        if self.sinks:
            straggler = self.stragglers.find(local_seconds)
            metrics = self._metrics(step, loss, norm, seconds, straggler)
            self._to_sinks(lambda sink: sink.write(metrics))
        return Requests(stop > 0, save > 0)

    def report_validation(self, loss: float) -> None:
        self._to_sinks(lambda sink: sink.write_validation(self.state.iteration, loss))

    def close(self) -> None:
        self._to_sinks(lambda sink: sink.close())

    def _to_sinks(self, write: Callable[[MetricSink], None]) -> None:
        """A sink that cannot be written, as on a full disk, is told once and dropped: training is worth more."""
        for sink in list(self.sinks):
            try:
                write(sink)
            except OSError as error:
                self.sinks.remove(sink)
                sink.abandon()
                warn(f"{sink.name} cannot be written any more: {error.strerror or error}.")

    def _metrics(
        self, step: PendingStep, loss: float, norm: float, seconds: float, straggler: Straggler | None
    ) -> StepMetrics:
        tokens = self.job.model.seq_len
        if self.reported > 1:  # the first is slower than all others
            self.recent.append((step.batch, seconds))
        samples, spent = (sum(column) for column in zip(*(self.recent or [(step.batch, seconds)]), strict=True))
        return StepMetrics(
            iteration=step.iteration,
            iterations=self.job.steps,
            consumed_samples=step.consumed,
            consumed_tokens=step.consumed * tokens,
            batch=step.batch,
            loss=loss,
            grad_norm=norm,
            learning_rate=step.rate,
            loss_scale=step.result.loss_scale,
            seconds=seconds,
            tokens_per_second=step.batch * tokens / seconds,
            tflops=tflops(self.job, step.batch, seconds),
            peak_memory_gib=self.peaks,
            skipped=self.state.skipped,
            nan=self.state.nan,
            warm_up=self.reported <= WARM_UP_ITERATIONS,
            spike=self.spikes.is_spike(loss),
            straggler=straggler,
            seconds_left=(self.samples - step.consumed) * spent / samples,
        )


def host_names_of(world: World) -> list[str]:
    """By rank."""
    names = [socket.gethostname()] * world.size
    if world.mesh is not None:
        dist.all_gather_object(names, names[0])
    return names


def tflops(job: Job, batch: int, seconds: float) -> dict[str, float]:
    step = TrainingStep(job.model, batch, job.layout.tp, job.layout.recompute)
    return {name: float(flops(step)) / seconds / job.layout.devices / 1e12 for name, flops in FORMULAS.items()}


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
