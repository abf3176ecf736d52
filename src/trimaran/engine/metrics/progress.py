"""What a person sees of a run: a bar with loss, speed and time left on a terminal; in a file, a whole log."""

import os
import signal
import sys
from datetime import timedelta
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from trimaran.engine.metrics.records import (
    WARM_UP_ITERATIONS,
    Record,
    argument_lines,
    iteration_line,
    memory_lines,
    validation_line,
)
from trimaran.spec import Job


class Progress:
    def __init__(self, job: Job, out: TextIO) -> None:
        self.job, self.out, self.told = job, out, 0
        self.bar = None
        if out.isatty():
            columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            self.bar = Bar(*columns, console=Console(file=out))
            self.task = self.bar.add_task("starting", total=job.steps)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        else:
            self.say("\n".join(argument_lines(self.job)))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, line: str) -> None:
        if self.bar is not None:
            self.bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        try:
            print(line, file=self.out, flush=True)
        except BrokenPipeError:  # of `| head`, or of a `| tee` that Ctrl-C has ended too
            signal.raise_signal(signal.SIGTERM)  # nobody looks any more: stop after this step, and save
            nowhere, pipe = os.open(os.devnull, os.O_WRONLY), self.out.fileno()
            if os.path.sameopenfile(pipe, sys.stderr.fileno()):  # 2>&1
                os.dup2(nowhere, sys.stderr.fileno())
            os.dup2(nowhere, pipe)

    def record(self, record: Record) -> None:
        self.told += 1
        self.say(iteration_line(record, self.job.trainer.prints))
        if self.told == WARM_UP_ITERATIONS:
            for line in memory_lines(record.iteration, record.peak_memory_gib, self.job.layout.dp * self.job.layout.tp):
                self.say(line)
        if record.spike:
            print(
                f"trimaran: note: the loss of iteration {record.iteration}, {record.loss:.4g}, is far above the last"
                " ones.",
                file=sys.stderr,
                flush=True,
            )
        if self.bar is not None:
            told = (
                f"loss {record.loss:.4f}  {record.tokens_per_second:,.0f} tokens/s"
                f"  {record.consumed_tokens / 1e6:,.1f} M tokens  {timedelta(seconds=round(record.seconds_left))} left"
            )
            self.bar.update(self.task, completed=record.iteration, description=told)

    def validation(self, iteration: int, loss: float) -> None:
        self.say(validation_line(iteration, loss))
