"""The harness: starts trials while there is room, records those that ended, and may be killed at any moment.

Its whole state is in the sweep's folder and in the ledger, so another harness can resume from there.
"""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.lab import files
from trimaran.lab.local import LauncherStatus, LocalLauncher
from trimaran.lab.outcome import outcome_of, outcome_without_result
from trimaran.lab.slurm import SlurmJobLauncher, SlurmStepLauncher
from trimaran.lab.slurm_messages import UNREACHABLE
from trimaran.lab.sweep_folder import MAX_ATTEMPTS, Attempt
from trimaran.lab.view import SweepView
from trimaran.ledger.store import Ledger
from trimaran.spec import Mistake, Outcome, Sweep

POLL_SECONDS = 0.5
STOPPED = "You stopped it."
LAUNCHERS: dict[str, Callable[[Sweep], LocalLauncher | SlurmJobLauncher]] = {
    "local": LocalLauncher,
    "slurm": SlurmJobLauncher,
    "allocation": SlurmStepLauncher,
}


@dataclass(frozen=True)
class Budget:
    trials: int | None = None
    minutes: float | None = None
    until_sure: bool = False  # stop when no untried layout can beat the best, even at the low end of its interval


class Harness:
    def __init__(self, sweep: Sweep, folder: Path, attempts: list[Attempt], ledger: Ledger, budget: Budget) -> None:
        self.sweep, self.folder, self.ledger, self.budget = sweep, folder, ledger, budget
        self.launcher = LAUNCHERS[sweep.place.kind](sweep)
        self.waiting = [attempt for attempt in attempts if attempt.outcome is None]
        self.done = [attempt for attempt in attempts if attempt.outcome is not None]
        self.running: list[Attempt] = []
        self.started_at, self.started = time.monotonic(), 0
        self.why_ended = ""
        self.interrupts = 0  # Ctrl-C: once, stop when the running trials have ended; twice, now
        self.stopping = self.cancelling = self.in_trouble = False
        self.spent: list[float] = []  # seconds of each trial that ended

    def run(self, view: SweepView) -> None:
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._adopt(view)
            while self.running or self._may_start():
                self._start_some(view)
                for attempt in list(self.running):
                    self._check(attempt, view)
                self._tell_trouble(view)
                if self.interrupts and not self.stopping:
                    self._stop_starting(view)
                if self.interrupts > 1 and not self.cancelling:
                    self._cancel(view)
                view.show(self.running, self.waiting, self._seconds_left())
                if self.running:
                    self.launcher.wait(self.running, POLL_SECONDS)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.interrupts:
            self.why_ended = STOPPED

    def _interrupt(self, *_: Any) -> None:
        self.interrupts += 1

    def _stop_starting(self, view: SweepView) -> None:
        self.stopping = True
        for attempt in list(self.running):
            if self.launcher.withdraw(attempt):
                self._record(attempt, Outcome(status="cancelled", reason="It was stopped before it started."), view)
        view.say(f"Stopping when {len(self.running)} running trials have ended; Ctrl-C again: now.")

    def _cancel(self, view: SweepView) -> None:
        self.cancelling = True
        left = [attempt for attempt in self.running if not self.launcher.cancel(attempt)]
        if left:  # in the ledger they are running
            view.say(f"{UNREACHABLE}, so {len(left)} trials could not be cancelled; --resume finds them again.")
        self.running = [attempt for attempt in self.running if attempt not in left]

    def _tell_trouble(self, view: SweepView) -> None:
        """Once when it begins, and once when it is over."""
        if self.in_trouble != any(attempt.waits_for == UNREACHABLE for attempt in self.running):
            self.in_trouble = not self.in_trouble
            view.say(f"{UNREACHABLE}; waiting for it." if self.in_trouble else "SLURM's controller answers again.")

    def _adopt(self, view: SweepView) -> None:
        """The trials of an earlier harness: ended, still running, or lost."""
        for attempt in list(self.waiting):
            if (attempt.folder / files.ORDER).exists():
                self.waiting.remove(attempt)
                self.running.append(attempt)
                self._check(attempt, view)

    def _may_start(self) -> bool:
        if not self.waiting:
            self.why_ended = self.why_ended or "Every layout was tried."
            return False
        if self.interrupts:
            return False
        if self.budget.trials is not None and self.started >= self.budget.trials:
            self.why_ended = f"The budget of {self.budget.trials} trials is spent."
        elif self.budget.minutes is not None and time.monotonic() - self.started_at > 60 * self.budget.minutes:
            self.why_ended = f"The budget of {self.budget.minutes:g} minutes is spent."
        elif self.budget.until_sure and (best := self.best) is not None and not self._may_beat(best):
            self.why_ended = (
                f"No untried layout can beat {best.candidate.label or 'the best'} ({_per_sample(best):.4g} s a sample):"
                f" {len(self.waiting)} are predicted slower, even at the fast end of their intervals."
            )
        else:
            return True
        return False

    @property
    def best(self) -> Attempt | None:
        """The fastest for each sample."""
        measured_ones = [a for a in self.done if a.outcome and a.outcome.status == "ok" and a.outcome.seconds]
        return min(measured_ones, key=_per_sample, default=None)

    def _may_beat(self, best: Attempt) -> bool:
        limit = _per_sample(best)
        return any(a.candidate.fits and a.candidate.low / a.job.batch.size < limit for a in self.waiting)

    def _start_some(self, view: SweepView) -> None:
        while self._may_start() and self.launcher.has_room(self.waiting[0], self.running):
            attempt = self.waiting.pop(0)
            self.started += 1
            self.ledger.add([attempt.trial()])
            try:
                self.launcher.start(attempt)
            except (OSError, Mistake) as error:
                why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
                self._record(attempt, Outcome(status="fail", reason=f"It could not be started: {why}"), view)
                continue
            self.running.append(attempt)

    def _check(self, attempt: Attempt, view: SweepView) -> None:
        """Its result file is authoritative; the launcher is asked only without one."""
        status, result = LauncherStatus(), files.read_result(attempt.folder)
        if result is None:
            status = self.launcher.look(attempt)
            result = files.read_result(attempt.folder)  # it may have ended meanwhile
        if result is not None and result["how"] == "cancelled" and not self.cancelling:
            status = self.launcher.why_cancelled(attempt)
            result = None
        ours = self.sweep.command is None
        if result is not None:
            self.launcher.ended(attempt)
            self.spent.append(result["ended"] - result["started"])
            self._record(attempt, outcome_of(attempt.job, attempt.folder, result, ours), view)
        elif status.status != "running":
            self.launcher.ended(attempt)
            ended = outcome_without_result(attempt.job, attempt.folder, status.status, status.reason, ours)
            self._record(attempt, ended, view)
        else:
            attempt.waits_for = status.reason

    def _record(self, attempt: Attempt, outcome: Outcome, view: SweepView) -> None:
        attempt.outcome = outcome
        self.ledger.add([attempt.trial()])
        with suppress(OSError):  # a full disk: the ledger has it; the file is for a person who looks into the folder
            files.write_json(attempt.folder / "outcome.json", outcome.to_dict())
        if attempt in self.running:
            self.running.remove(attempt)
        self.done.append(attempt)
        view.ended(attempt, self.best)
        if outcome.status == "lost" and attempt.attempt < MAX_ATTEMPTS:
            self.waiting.insert(0, attempt.again())

    def _seconds_left(self) -> float | None:
        """If the remaining trials take as long as those so far."""
        if not self.spent:
            return None
        each = sum(self.spent) / len(self.spent)
        return len(self.waiting + self.running) * each / self.sweep.place.parallel


def _per_sample(attempt: Attempt) -> float:
    assert attempt.outcome is not None
    assert attempt.outcome.seconds is not None
    return attempt.outcome.seconds / attempt.job.batch.size
