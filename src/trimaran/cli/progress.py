"""Progress of long work: a bar on a terminal, else a line every few seconds; both on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(every: float = 5.0) -> Iterator[Callable[[float, float, str], None]]:
    """Gives update(done, total, text)."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)
        return
    printed = time.monotonic()

    def line(done: float, total: float, text: str) -> None:
        nonlocal printed
        if time.monotonic() - printed >= every:
            printed = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    yield line


@contextmanager
def copying(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives update(done, total), in bytes or tensors of the weights that are read or written."""
    with progress() as update:
        yield lambda done, total: update(done, total, f"{what}: {done / total:.0%}")
