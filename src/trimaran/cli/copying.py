"""How far reading or writing of weights is: a bar on a terminal, else a line now and then; both on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def copying(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with what is done and what there is, in bytes or tensors."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    told = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            print(f"{what}: {done / total:.0%}", file=sys.stderr, flush=True)

    yield line
