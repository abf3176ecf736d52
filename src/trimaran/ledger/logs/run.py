"""What readers of all logs share: the runs of a file, their iterations in columns, and the Trial they add up to."""

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.ledger.logs.failure import FailureWatch, LoggedFailure
from trimaran.ledger.logs.usable import usable
from trimaran.ledger.reading import Reading, Unread, trial_id
from trimaran.spec import Outcome, Setup, Source, Trial
from trimaran.spec.job import WARM_UP_ITERATIONS


def warm_up_iterations(iterations: int, framework: str | None) -> int:
    """How many of the first iterations are left out: they compile, allocate and fill caches. Of our own trainer as many
    as in the metrics of a run, so that a log and a trial of the same run have the same median."""
    if framework == OUR_TRAINER:
        return min(WARM_UP_ITERATIONS, iterations - 1)
    return 0 if iterations <= 1 else min(5, max(1, iterations // 5))


OUR_TRAINER = "trimaran"
MIB_PER_GIB = 1024.0
_TEXT_LENGTH = 300  # of an unusable line that is shown


@dataclass
class PeakMemory:
    """The peak of each rank in MiB: what Megatron prints as 'MB' is bytes / 1024²."""

    peaks: dict[int, float] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)

    def add(self, rank: int, after: int, mib: float) -> None:
        self.peaks[rank] = max(mib, self.peaks.get(rank, 0.0))
        self.after[rank] = after

    def is_of_another_run(self, rank: int, after: int, mib: float) -> bool:
        """A rank reports ever later iterations: an earlier one means that it was started again."""
        known = self.after.get(rank)
        return known is not None and (after < known or (after == known and mib != self.peaks[rank]))

    def join(self, other: "PeakMemory") -> None:
        for rank, mib in other.peaks.items():
            self.add(rank, other.after[rank], mib)

    def peak_gib(self) -> float | None:
        return max(self.peaks.values()) / MIB_PER_GIB if self.peaks else None

    def by_stage_gib(self, devices: int | None, pp: int | None) -> tuple[float, ...]:
        """Pipeline stages are the slowest axis of Megatron's rank order; empty unless every stage reported."""
        if not devices or not pp or devices % pp:
            return ()
        stages: dict[int, float] = {}
        for rank, mib in self.peaks.items():
            stage = rank // (devices // pp)
            stages[stage] = max(mib / MIB_PER_GIB, stages.get(stage, 0.0))
        return tuple(gib for _, gib in sorted(stages.items())) if len(stages) == pp and max(stages) < pp else ()


@dataclass
class LoggedRun:
    """Columns, not objects: a log can hold a million iterations. NaN and 0 where a line did not print it."""

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
    memory: PeakMemory = field(default_factory=PeakMemory)
    failure: LoggedFailure | None = None
    finished: bool = False
    varying_length: bool = False  # a curriculum lengthens the sequences: tokens per iteration are not known
    notes: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)  # of Megatron's dump
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of torchtitan's preamble

    @property
    def has_outcome(self) -> bool:
        """Whether there is anything to report; arguments alone are not an outcome."""
        return bool(self.numbers) or self.failure is not None

    def begin(self, line: int, text: str, label: str, date: str, total: int) -> None:
        self.line, self.text, self.label, self.date, self.total = line, text, label, date, total

    def add(self, number: int, seconds: float, batch: int, tflops: float, text: str) -> None:
        """A new iteration also means that the run survived whatever went wrong before it."""
        self.numbers.append(number)
        self.seconds.append(seconds)
        self.batch.append(batch)
        self.tflops.append(tflops)
        self.prints.append(hash(text))
        self.last_text = text
        self.failure = None
        self.finished = False

    def has_printed(self, number: int, text: str) -> bool:
        """Whether this very text was counted; numbers increase within a run, so by binary search."""
        at = bisect_left(self.numbers, number)
        return at < len(self.numbers) and self.numbers[at] == number and self.prints[at] == hash(text)

    def start_of_last_batch_size(self) -> int:
        changes = np.flatnonzero(np.diff(np.array(self.batch, dtype=np.int64)))
        return int(changes[-1]) + 1 if len(changes) else 0

    def interval(self) -> int:
        """Iterations per printed line: each line then is already a mean of so many."""
        if len(self.numbers) < 2:
            return 1
        return int(np.median(np.diff(np.array(self.numbers, dtype=np.int64))))


def _median(column: npt.NDArray[np.float64]) -> float | None:
    known = column[np.isfinite(column)]
    return float(np.median(known)) if len(known) else None


def trial_of(run: LoggedRun, file: str, setup: Setup, formula: str | None, several: bool) -> Trial:
    """Named by the file, the place of the run in it and its first iteration: a log that has grown keeps its trials."""
    name = PurePath(file).name.removesuffix(".gz")
    failure = run.failure
    if run.numbers and run.batch[-1]:
        setup = usable(Setup, {**setup.model_dump(), "gbs": run.batch[-1]})
    outcome = _outcome(run, setup, formula)
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
            note=" ".join(_notes(run, outcome.iterations)),
        ),
    )


def _outcome(run: LoggedRun, setup: Setup, formula: str | None) -> Outcome:
    """Median and spread of the iterations after warm-up, all of the last batch size."""
    values: dict[str, Any] = {
        "status": run.failure.status if run.failure else "ok",
        "reason": run.failure.reason if run.failure else "",
        "memory_gib": run.memory.peak_gib(),
        "memory_by_stage_gib": run.memory.by_stage_gib(setup.devices, setup.pp),
    }
    if not run.numbers:
        return usable(Outcome, values)
    start = run.start_of_last_batch_size()
    seconds, tflops = np.array(run.seconds)[start:], np.array(run.tflops)[start:]
    timed = np.isfinite(seconds)
    if timed.any():  # the first step has no time where times come from the clock between two steps
        seconds, tflops = seconds[timed], tflops[timed]
    warm_up = warm_up_iterations(len(seconds), setup.framework)
    printed_tflops = _median(tflops[warm_up:])
    values |= {
        "iterations": len(seconds) - warm_up,
        "warmup": warm_up,
        "tflops": printed_tflops,
        "tflops_formula": formula if printed_tflops is not None else None,
        "last_loss": run.loss if run.loss is not None and math.isfinite(run.loss) else None,
        "skipped": run.skipped,
        "nan": run.nan,
    }
    if not timed.any():
        return usable(Outcome, values)
    median = float(np.median(seconds[warm_up:]))
    low, high = (float(quartile) for quartile in np.quantile(seconds[warm_up:], (0.25, 0.75)))
    tokens = setup.gbs * setup.seq_len if setup.gbs and setup.seq_len and not run.varying_length else None
    values |= {"seconds": median, "seconds_low": low, "seconds_high": high}
    return usable(Outcome, {**values, "tokens_per_second": tokens / median if tokens else None})


def _notes(run: LoggedRun, iterations: int | None) -> list[str]:
    notes = []
    if start := run.start_of_last_batch_size():
        last = run.batch[-1]
        notes.append(
            f"The global batch size changed from {run.batch[0]} to {last}; "
            f"only the {len(run.batch) - start} iterations at {last} are timed."
        )
    if iterations == 1:
        notes.append("A single iteration, not a median.")
    interval = run.interval()
    if interval > 1:
        notes.append(f"Each printed time is the mean of {interval} iterations.")
    notes += run.notes
    if run.loss is not None and not math.isfinite(run.loss):
        notes.append("The last printed loss is not a finite number.")
    return notes


class LogReader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._runs: list[LoggedRun] = []
        self._watch = FailureWatch()
        self._unread: list[Unread] = []

    @property
    def _run(self) -> LoggedRun | None:
        """The last one."""
        return self._runs[-1] if self._runs else None

    def _new_run(self, at: int) -> LoggedRun:
        self._runs.append(LoggedRun(ordinal=len(self._runs) + 1, line=at))
        return self._runs[-1]

    def _trial(self, run: LoggedRun, several: bool) -> Trial:
        raise NotImplementedError

    def _look_for_failure(self, at: int, text: str) -> None:
        """Of two the run keeps the one that explains the other; of equals the first, since the rest follow from it."""
        failure, run = self._watch.look(text, at), self._run
        if failure and run and not run.finished and (run.failure is None or failure.strength > run.failure.strength):
            run.failure = failure

    def _list_unread(self, at: int, text: str, why: str) -> None:
        self._unread.append(Unread(self._file, at, text.strip()[:_TEXT_LENGTH], why))

    def _reading(self, start: str, why: str) -> Reading:
        """A trial of each run with an outcome; the start of every other run is listed as unread."""
        for run in self._runs:
            if not run.has_outcome:
                self._list_unread(run.line, start, why)
        finished = [run for run in self._runs if run.has_outcome]
        trials = tuple(self._trial(run, several=len(finished) > 1) for run in finished)
        return Reading(trials, tuple(self._unread))
