"""Run: the iterations of one run in a log, in columns, and the Trial they add up to."""

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from trimaran.ledger.logs.failure import Failure
from trimaran.ledger.logs.memory import Memory
from trimaran.ledger.reading import trial_id
from trimaran.spec import Outcome, Setup, Source, Trial


def warmup_of(iterations: int) -> int:
    """How many of the first iterations are left out: they compile, allocate and fill caches."""
    return 0 if iterations <= 1 else min(5, max(1, iterations // 5))


@dataclass(frozen=True)
class Measured:
    """Median and spread of the iterations after warm-up."""

    iterations: int
    warmup: int
    batch: int | None
    seconds: float | None = None
    seconds_low: float | None = None
    seconds_high: float | None = None
    tflops: float | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Run:
    """Columns, not objects: a log can hold a million iterations. NaN and 0 stand for what a line did not print."""

    ordinal: int
    line: int
    text: str = ""  # the first iteration without its prefix
    last_text: str = ""
    label: str = ""
    date: str = ""
    total: int = 0
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    batch: "array[int]" = field(default_factory=lambda: array("q"))
    tflops: "array[float]" = field(default_factory=lambda: array("d"))
    prints: "array[int]" = field(default_factory=lambda: array("q"))
    skipped: int | None = None
    nan: int | None = None
    loss: float | None = None
    memory: Memory = field(default_factory=Memory)
    failure: Failure | None = None
    finished: bool = False
    varying_length: bool = False  # a curriculum lengthens the sequences: tokens per iteration are not known
    notes: list[str] = field(default_factory=list)

    @property
    def happened(self) -> bool:
        """Whether there is anything to tell; arguments alone are not an outcome."""
        return bool(self.numbers) or self.failure is not None

    def begin(self, line: int, text: str, label: str, date: str, total: int) -> None:
        self.line, self.text, self.label, self.date, self.total = line, text, label, date, total

    def add(self, number: int, seconds: float, batch: int, tflops: float, text: str) -> None:
        """A new iteration also means that whatever went wrong before it was survived."""
        self.numbers.append(number)
        self.seconds.append(seconds)
        self.batch.append(batch)
        self.tflops.append(tflops)
        self.prints.append(hash(text))
        self.last_text = text
        self.failure = None
        self.finished = False

    def has_printed(self, number: int, text: str) -> bool:
        """Whether this very text was counted; numbers rise within a run, so it is found by halving."""
        at = bisect_left(self.numbers, number)
        return at < len(self.numbers) and self.numbers[at] == number and self.prints[at] == hash(text)

    def measured(self) -> Measured:
        batches = np.array(self.batch, dtype=np.int64)
        changes = np.flatnonzero(np.diff(batches))
        start = int(changes[-1]) + 1 if len(changes) else 0
        seconds = np.array(self.seconds)[start:]
        timed = np.isfinite(seconds)
        if timed.any():  # the first step has no time where times come from the clock between two steps
            seconds = seconds[timed]
            tflops = np.array(self.tflops)[start:][timed]
        else:
            tflops = np.array(self.tflops)[start:]
        skip = warmup_of(len(seconds))
        used = seconds[skip:]
        batch = int(batches[-1]) or None
        notes = tuple(_notes(batches, start, len(used), self.interval()))
        median = _median(tflops[skip:])
        if not timed.any():
            return Measured(len(used), skip, batch, tflops=median, notes=notes)
        low, high = (float(quartile) for quartile in np.quantile(used, (0.25, 0.75)))
        return Measured(len(used), skip, batch, float(np.median(used)), low, high, median, notes)

    def interval(self) -> int:
        """Iterations per printed line: each line then is already a mean of so many."""
        if len(self.numbers) < 2:
            return 1
        return int(np.median(np.diff(np.array(self.numbers, dtype=np.int64))))


def _median(column: npt.NDArray[np.float64]) -> float | None:
    known = column[np.isfinite(column)]
    return float(np.median(known)) if len(known) else None


def _notes(batches: npt.NDArray[np.int64], start: int, used: int, interval: int) -> list[str]:
    notes = []
    if start:
        notes.append(
            f"The global batch size changed from {batches[0]} to {batches[-1]}; "
            f"only the {len(batches) - start} iterations at {batches[-1]} are measured."
        )
    if used == 1:
        notes.append("A single iteration, not a median.")
    if interval > 1:
        notes.append(f"Each printed time is the mean of {interval} iterations.")
    return notes


def trial_of(run: Run, file: str, setup: Setup, formula: str | None, several: bool) -> Trial:
    """Named by the file, the place of the run in it and its first iteration: a log that has grown keeps its trials."""
    name = PurePath(file).name.removesuffix(".gz")
    measured = run.measured() if run.numbers else None
    failure = run.failure
    if measured and measured.batch:
        setup = setup.replace(gbs=measured.batch)
    outcome = _outcome(run, measured, setup, formula)
    notes = [*(measured.notes if measured else ()), *run.notes]
    if run.loss is not None and not math.isfinite(run.loss):
        notes.append("The last printed loss is not a finite number.")
    return Trial(
        id=trial_id("log", name, run.ordinal, run.text or (failure.reason if failure else "")),
        setup=setup,
        outcome=outcome,
        source=Source(
            kind="log",
            file=file,
            line=run.line if run.numbers or not failure else failure.line,
            label=f"run {run.ordinal}" if several else "",
            date=run.date,
            note=" ".join(notes),
        ),
    )


def _outcome(run: Run, measured: Measured | None, setup: Setup, formula: str | None) -> Outcome:
    status = run.failure.status if run.failure else "ok"
    reason = run.failure.reason if run.failure else ""
    memory = run.memory.peak_gib()
    stages = run.memory.by_stage_gib(setup.devices, setup.pp)
    if measured is None:
        return Outcome(status=status, reason=reason, memory_gib=memory, memory_by_stage_gib=stages)
    tokens = setup.gbs * setup.seq_len if setup.gbs and setup.seq_len and not run.varying_length else None
    return Outcome(
        status=status,
        reason=reason,
        seconds=measured.seconds,
        seconds_low=measured.seconds_low,
        seconds_high=measured.seconds_high,
        iterations=measured.iterations,
        warmup=measured.warmup,
        memory_gib=memory,
        memory_by_stage_gib=stages,
        tokens_per_second=tokens / measured.seconds if tokens and measured.seconds else None,
        tflops=measured.tflops,
        tflops_formula=formula if measured.tflops is not None else None,
        last_loss=run.loss if run.loss is not None and math.isfinite(run.loss) else None,
        skipped=run.skipped,
        nan=run.nan,
    )
