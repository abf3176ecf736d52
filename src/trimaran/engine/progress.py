"""What a person sees of a run: a bar with loss, speed and time left on a terminal; in a file, a whole log."""

from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from trimaran.engine.records import Record, argument_lines
from trimaran.spec import Job


class Progress:
    def __init__(self, job: Job, out: TextIO) -> None:
        self.job, self.out = job, out
        self.bar = None
        if out.isatty():
            columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self.bar = Bar(*columns, console=Console(file=out))
            self.task = self.bar.add_task("starting", total=job.steps)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        else:
            print("\n".join(argument_lines(self.job)), file=self.out, flush=True)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, line: str) -> None:
        if self.bar is None:
            print(line, file=self.out, flush=True)
        else:
            self.bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, lines: list[str], record: Record) -> None:
        for line in lines:
            self.say(line)
        if self.bar is None:
            return
        told = f"loss {record.loss:.4f}  {record.tokens_per_second:,.0f} tokens/s"
        self.bar.update(self.task, completed=record.iteration, description=told)
