"""What readers of all logs share: the runs of a file, their iterations in columns, and the Trial they add up to."""

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from trimaran.ledger.logs.failure import FailureWatch, LoggedFailure, stronger
from trimaran.ledger.reading import Unread, trial_id
from trimaran.spec import Outcome, Setup, Source, Trial
from trimaran.spec.job import WARM_UP_ITERATIONS


def warm_up_iterations(iterations: int, framework: str | None) -> int:
    """How many of the first iterations are left out: they compile, allocate and fill caches. Of our own trainer as many
    as in the metrics of a run, so that a log and a trial of the same run have the same median."""
    if framework == OUR_TRAINER:
        return min(WARM_UP_ITERATIONS, iterations - 1)
    return 0 if iterations <= 1 else min(5, max(1, iterations // 5))


OUR_TRAINER = "trimaran"
_MIB_PER_GIB = 1024.0
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
        return max(self.peaks.values()) / _MIB_PER_GIB if self.peaks else None

    def by_stage_gib(self, devices: int | None, pp: int | None) -> tuple[float, ...]:
        """Pipeline stages are the slowest axis of Megatron's rank order; empty unless every stage reported."""
        if not devices or not pp or devices % pp:
            return ()
        stages: dict[int, float] = {}
        for rank, mib in self.peaks.items():
            stage = rank // (devices // pp)
            stages[stage] = max(mib / _MIB_PER_GIB, stages.get(stage, 0.0))
        return tuple(gib for _, gib in sorted(stages.items())) if len(stages) == pp and max(stages) < pp else ()


@dataclass(frozen=True)
class StepTiming:
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

    def timing(self, framework: str | None) -> StepTiming:
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
        skip = warm_up_iterations(len(seconds), framework)
        used = seconds[skip:]
        batch = int(batches[-1]) or None
        notes = tuple(_notes(batches, start, len(used), self.interval()))
        median = _median(tflops[skip:])
        if not timed.any():
            return StepTiming(len(used), skip, batch, tflops=median, notes=notes)
        low, high = (float(quartile) for quartile in np.quantile(used, (0.25, 0.75)))
        return StepTiming(len(used), skip, batch, float(np.median(used)), low, high, median, notes)

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
            f"only the {len(batches) - start} iterations at {batches[-1]} are timing."
        )
    if used == 1:
        notes.append("A single iteration, not a median.")
    if interval > 1:
        notes.append(f"Each printed time is the mean of {interval} iterations.")
    return notes


def trial_of(run: LoggedRun, file: str, setup: Setup, formula: str | None, several: bool) -> Trial:
    """Named by the file, the place of the run in it and its first iteration: a log that has grown keeps its trials."""
    name = PurePath(file).name.removesuffix(".gz")
    timing = run.timing(setup.framework) if run.numbers else None
    failure = run.failure
    if timing and timing.batch:
        setup = setup.replace(gbs=timing.batch)
    outcome = _outcome(run, timing, setup, formula)
    notes = [*(timing.notes if timing else ()), *run.notes]
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


def _outcome(run: LoggedRun, timing: StepTiming | None, setup: Setup, formula: str | None) -> Outcome:
    status = run.failure.status if run.failure else "ok"
    reason = run.failure.reason if run.failure else ""
    memory = run.memory.peak_gib()
    stages = run.memory.by_stage_gib(setup.devices, setup.pp)
    if timing is None:
        return Outcome(status=status, reason=reason, memory_gib=memory, memory_by_stage_gib=stages)
    tokens = setup.gbs * setup.seq_len if setup.gbs and setup.seq_len and not run.varying_length else None
    return Outcome(
        status=status,
        reason=reason,
        seconds=timing.seconds,
        seconds_low=timing.seconds_low,
        seconds_high=timing.seconds_high,
        iterations=timing.iterations,
        warmup=timing.warmup,
        memory_gib=memory,
        memory_by_stage_gib=stages,
        tokens_per_second=tokens / timing.seconds if tokens and timing.seconds else None,
        tflops=timing.tflops,
        tflops_formula=formula if timing.tflops is not None else None,
        last_loss=run.loss if run.loss is not None and math.isfinite(run.loss) else None,
        skipped=run.skipped,
        nan=run.nan,
    )


class LogReader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._runs: list[LoggedRun] = []
        self._watch = FailureWatch()
        self._unread: list[Unread] = []

    def _look_for_failure(self, at: int, text: str) -> None:
        failure = self._watch.look(text, at)
        if failure and self._runs and not self._runs[-1].finished:
            self._runs[-1].failure = stronger(self._runs[-1].failure, failure)

    def _list_unread(self, at: int, text: str, why: str) -> None:
        self._unread.append(Unread(self._file, at, text.strip()[:_TEXT_LENGTH], why))

    def _finished_runs(self, start: str, why: str) -> list[LoggedRun]:
        """Runs with an outcome; the start of every other run is listed as unread."""
        for run in self._runs:
            if not run.has_outcome:
                self._list_unread(run.line, start, why)
        return [run for run in self._runs if run.has_outcome]
