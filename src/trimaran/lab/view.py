"""The display of a sweep: on a terminal a live table and a progress bar; otherwise a line for each trial that ends."""

import os
import sys
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trimaran.lab.sweep_folder import Attempt

STYLES = {"oom": "red", "hang": "red", "fail": "red", "timeout": "yellow", "lost": "yellow"}
MAX_ROWS = 24  # of the table: the last that ended


class SweepConsole(Console):
    """Resumes on stderr when its reader is gone: Ctrl-C ends the `tee` of `trimaran sweep … | tee` as well, and the
    running trials still have to be watched."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self.file = sys.stderr


class SweepView:
    def __init__(self, total: int, console: Console) -> None:
        self.total, self.console = total, console
        self.rows: list[Attempt] = []
        self.best: Attempt | None = None
        self.live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.update(self._table([]), refresh=True)
            self.live.stop()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def ended(self, attempt: Attempt, best: Attempt | None) -> None:
        self.rows.append(attempt)
        self.best = best
        if self.live is None:
            self.say(line_of(attempt, self.total))

    def show(self, running: list[Attempt], waiting: list[Attempt], seconds_left: float | None) -> None:
        if self.live is None:
            return
        done = self.total - len(waiting) - len(running)
        left = f"about {timedelta(seconds=round(seconds_left))} left" if seconds_left is not None else ""
        best = f"best so far: {self.best.candidate.label}, {seconds_of(self.best)}" if self.best else ""
        bar = ProgressBar(self.total, done, width=40)
        words = Text(f"{done} of {self.total} trials   {left}   {best}")
        self.live.update(Group(self._table(running), bar, words))

    def _table(self, running: list[Attempt]) -> Table:
        table = Table(box=None, header_style="bold")
        for name in ("trial", "what", "predicted", "measured", "ratio", "GiB", "", ""):
            right = name in ("predicted", "measured", "ratio", "GiB")
            table.add_column(name, justify="right" if right else "left", no_wrap=not right and name != "")
        for attempt in self.rows[-MAX_ROWS:]:
            style = STYLES.get(attempt.outcome.status, "") if attempt.outcome else ""
            table.add_row(*row_of(attempt), "★" if attempt is self.best else "", style=style)
        for attempt in running:
            expected = f"{attempt.candidate.seconds:.3g} s"
            table.add_row(attempt.folder.name, attempt.candidate.label, expected, "…", "", "", attempt.waits_for)
        return table


def seconds_of(attempt: Attempt) -> str:
    seconds = attempt.outcome.seconds if attempt.outcome else None
    return f"{seconds:.4g} s" if seconds else "—"


def row_of(attempt: Attempt) -> tuple[str, ...]:
    outcome, expected = attempt.outcome, attempt.candidate
    assert outcome is not None
    ratio = f"{outcome.seconds / expected.seconds:.2f}" if outcome.seconds else ""
    memory = f"{outcome.memory_gib:.2f}" if outcome.memory_gib else ""
    status = outcome.status if outcome.status == "ok" else f"{outcome.status}: {outcome.reason}"
    if outcome.straggler:
        status = f"{status} ({outcome.straggler})"
    return attempt.folder.name, expected.label, f"{expected.seconds:.3g} s", seconds_of(attempt), ratio, memory, status


def line_of(attempt: Attempt, total: int) -> str:
    number, label, expected, seconds, ratio, memory, status = row_of(attempt)
    numbers = f"{seconds}, predicted {expected} (x {ratio}), {memory} GiB" if ratio else f"predicted {expected}"
    return f"[{number} of {total}] {label}: {status}; {numbers}"
