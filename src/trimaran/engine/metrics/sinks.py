"""StepMetrics, and where the last rank writes them: the console, a file of JSON lines, TensorBoard."""

import json
import math
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from trimaran.engine.metrics.stragglers import Straggler
from trimaran.export.argument_dump import argument_lines
from trimaran.processes.heartbeat import warn
from trimaran.spec import Job
from trimaran.spec.job import WARM_UP_ITERATIONS


@dataclass(frozen=True)
class StepMetrics:
    """One iteration; its fields are the keys of a line of `--metrics`."""

    iteration: int
    iterations: int
    consumed_samples: int
    consumed_tokens: int
    batch: int
    loss: float
    grad_norm: float
    learning_rate: float
    loss_scale: float
    seconds: float
    tokens_per_second: float
    tflops: dict[str, float]  # per device, by named formula
    peak_memory_gib: list[float]  # of each pipeline stage's fullest rank
    skipped: int
    nan: int
    warm_up: bool
    spike: bool  # the loss is far above the last ones
    straggler: Straggler | None  # the rank that holds up the others, where there is one
    seconds_left: float  # to the last iteration, at the speed of the last ones


class ConsoleSink:
    """A log; on a terminal also a bar with loss, speed and time left below it."""

    name = "The log"

    def __init__(self, job: Job, out: TextIO) -> None:
        self.job, self.out, self.steps = job, out, 0
        self.slow_rank: int | None = None
        self.bar = None
        if out.isatty():
            columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            self.bar = Progress(*columns, console=Console(file=out))
            self.task = self.bar.add_task("starting", total=job.steps)
            self.bar.start()
        else:
            self._print("\n".join(argument_lines(job)))

    def close(self) -> None:
        if self.bar:
            self.bar.stop()

    def write(self, step: StepMetrics) -> None:
        self.steps += 1
        self._print(iteration_line(step, self.job.trainer.prints))
        if self.steps == WARM_UP_ITERATIONS:
            for line in memory_lines(step.iteration, step.peak_memory_gib, self.job.layout.dp * self.job.layout.tp):
                self._print(line)
        if step.spike:
            print(
                f"trimaran: note: the loss of iteration {step.iteration}, {step.loss:.4g}, is far above the last ones.",
                file=sys.stderr,
                flush=True,
            )
        self._tell_straggler(step)
        if self.bar is not None:
            shown = (
                f"loss {step.loss:.4f}  {step.tokens_per_second:,.0f} tokens/s"
                f"  {step.consumed_tokens / 1e6:,.1f} M tokens  {timedelta(seconds=round(step.seconds_left))} left"
            )
            self.bar.update(self.task, completed=step.iteration, description=shown)

    def _tell_straggler(self, step: StepMetrics) -> None:
        """When there is another one than before."""
        found, rank = step.straggler, step.straggler.rank if step.straggler else None
        if found is not None and rank != self.slow_rank:
            warn(
                f"rank {rank} on {found.host} takes {found.slowdown:.2g} times as long as its peers for the same work"
                f" (iteration {step.iteration}): all wait for it."
            )
        self.slow_rank = rank

    def write_validation(self, iteration: int, loss: float) -> None:
        self._print(validation_line(iteration, loss))

    def _print(self, line: str) -> None:
        if self.bar is not None:
            self.bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        try:
            print(line, file=self.out, flush=True)
        except BrokenPipeError:  # of `| head`, or of a `| tee` that Ctrl-C has ended too
            signal.raise_signal(signal.SIGTERM)  # nobody reads it any more: stop after this step, and save
            self.abandon()

    def abandon(self) -> None:
        """What is still in Python's buffer, and whatever follows, goes nowhere."""
        null, log = os.open(os.devnull, os.O_WRONLY), self.out.fileno()
        if os.path.sameopenfile(log, sys.stderr.fileno()):  # 2>&1
            os.dup2(null, sys.stderr.fileno())
        os.dup2(null, log)


def iteration_line(step: StepMetrics, formula: str) -> str:
    """As Megatron-DeepSpeed prints it at BigScience, so that what reads their logs reads ours."""
    fields = [
        f" iteration {step.iteration:8d}/{step.iterations:8d}",
        f"consumed samples: {step.consumed_samples:12d}",
        f"consumed tokens: {step.consumed_tokens:12d}",
        f"elapsed time per iteration (s): {step.seconds:.2f}",
        f"learning rate: {step.learning_rate:.3E}",
        f"global batch size: {step.batch:5d}",
        f"lm loss: {step.loss:.6E}",
        f"loss scale: {step.loss_scale:.1f}",
        f"grad norm: {step.grad_norm:.3f}",
        f"number of skipped iterations: {step.skipped:3d}",
        f"number of nan iterations: {step.nan:3d}",
        f"samples per second: {step.batch / step.seconds:.3f}",
        f"TFLOPs: {step.tflops[formula]:.2f}",
        f"time left (s): {step.seconds_left:.0f}",
    ]
    return " | ".join(fields) + " |"


def validation_line(iteration: int, loss: float) -> str:
    perplexity = math.exp(min(20.0, loss))
    return f" validation loss at iteration {iteration} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} |"


def memory_lines(iteration: int, peaks_gib: list[float], ranks_per_stage: int) -> list[str]:
    """Megatron's memory report: one line per pipeline stage, with the number of the stage's first rank."""
    return [
        f"[Rank {stage * ranks_per_stage}] (after {iteration} iterations) memory (MB) | max reserved: {gib * 1024:.1f}"
        for stage, gib in enumerate(peaks_gib)
    ]


class JsonLinesSink:
    """One object a line, flushed at once; NaN and infinity, which JSON does not have, are null."""

    def __init__(self, path: Path, resumed: bool) -> None:
        self.name = str(path)
        self.file = path.open("a" if resumed else "w", encoding="utf-8")

    def close(self) -> None:
        self.file.close()

    def abandon(self) -> None:
        with suppress(OSError):  # once more, of what is still in Python's buffer
            self.file.close()

    def write(self, step: StepMetrics) -> None:
        self._write(asdict(step))

    def write_validation(self, iteration: int, loss: float) -> None:
        self._write({"iteration": iteration, "validation_loss": loss})

    def _write(self, values: dict[str, Any]) -> None:
        finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        self.file.write(json.dumps(finite) + "\n")
        self.file.flush()


class TensorBoardSink:
    """Scalars by iteration, under Megatron's names where it has one. Written at once: PyTorch's SummaryWriter has a
    thread that hides errors until it is closed, and loses what is queued when the run is killed."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.name = str(folder)
        self.file = (folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}").open("wb")
        self.records = RecordWriter(self.file)
        self._write(Event(file_version="brain.Event:2"))

    def close(self) -> None:
        self.file.close()

    def abandon(self) -> None:
        with suppress(OSError):
            self.file.close()

    def write(self, step: StepMetrics) -> None:
        scalars = {
            "lm-loss-training/lm loss": step.loss,
            "grad-norm/grad-norm": step.grad_norm,
            "learning-rate/learning-rate": step.learning_rate,
            "batch-size/batch-size": step.batch,
            "loss-scale/loss-scale": step.loss_scale,
            "iteration-time/iteration-time": step.seconds,
            "throughput/tokens-per-second": step.tokens_per_second,
            **{f"tflops/{formula}": value for formula, value in step.tflops.items()},
            **{f"peak-memory-gib/stage {stage}": gib for stage, gib in enumerate(step.peak_memory_gib)},
        }
        self._write_scalars(scalars, step.iteration)

    def write_validation(self, iteration: int, loss: float) -> None:
        self._write_scalars({"lm-loss-validation/lm loss": loss}, iteration)

    def _write_scalars(self, scalars: dict[str, float], iteration: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(Event(step=iteration, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self.records.write(event.SerializeToString())
        self.records.flush()


MetricSink = ConsoleSink | JsonLinesSink | TensorBoardSink


def open_sinks(job: Job, metrics: Path | None, tensorboard: Path | None, resumed: bool) -> list[MetricSink]:
    """A resumed run appends to its metrics."""
    sinks: list[MetricSink] = [ConsoleSink(job, sys.stdout)]
    try:
        if metrics is not None:
            sinks.append(JsonLinesSink(metrics, resumed))
        if tensorboard is not None:
            sinks.append(TensorBoardSink(tensorboard))
    except OSError as error:
        warn(f"{error.filename or tensorboard} cannot be written: {error.strerror}.")
    return sinks
