"""Restarts of a run whose rank died: how many, after which pause, and on this machine by executing the command anew.

The process that forked the ranks has PyTorch's threads, beside which it must not fork again. Executing itself keeps its
pid, terminal and pipes, and gives a process without threads.
"""

import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.engine.checkpoint.folder import newest_checkpoint
from trimaran.processes.exit_codes import INTERRUPTED, RANK_FAILED
from trimaran.processes.signals import STOP_SIGNALS

VARIABLE = "TRIMARAN_RESTARTED"  # what a process tells the one that it becomes
LONGEST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True)
class Restarts:
    """Counted from the last progress: a run that gets on may be restarted for ever, one that does not is given up."""

    allowed: int
    used: int = 0
    iteration: int = 0  # of the newest complete checkpoint when the run last started

    def next(self, iteration: int) -> "Restarts | None":
        """With the newest complete checkpoint at this iteration; None: none is left."""
        used = 0 if iteration > self.iteration else self.used
        return replace(self, used=used + 1, iteration=iteration) if used < self.allowed else None

    @property
    def pause_seconds(self) -> float:
        """None before the first, then twice as long each time: a port, a file system or a node may need a moment."""
        return 0.0 if self.used < 2 else min(LONGEST_PAUSE_SECONDS, 2.0 ** (self.used - 2))


def first_attempt(allowed: int, folder: str | None) -> Restarts:
    """The count that this process left for itself when it executed itself, else of a run that starts."""
    pid, _, counted = os.environ.pop(VARIABLE, "").partition(" ")
    if pid == str(os.getpid()):  # not another process's, inherited
        used, iteration = counted.split()
        return Restarts(allowed, int(used), int(iteration))
    return Restarts(allowed, iteration=saved_iteration(folder))


def saved_iteration(folder: str | None) -> int:
    """Of the newest complete checkpoint, 0 without one."""
    newest = newest_checkpoint(Path(folder)) if folder else None
    return int(newest.name.removeprefix("step-")) if newest else 0


def restart_after(code: int, restarts: Restarts, folder: str | None) -> Restarts | None:
    """What the next attempt is counted as, told on stderr; None where the run ends with this code.

    Stop signals are blocked from here until the next attempt has handlers: none of them may kill what should save.
    """
    if code != RANK_FAILED or not restarts.allowed:
        return None
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    iteration = saved_iteration(folder)
    following = restarts.next(iteration)
    if following is None:
        tell(f"giving up: {restarts.allowed} restarts in a row without a checkpoint after iteration {iteration}.")
        return None
    if iteration:
        start = f"from the checkpoint of iteration {iteration} in {folder}"
    else:
        start = f"from iteration 1, because {'nothing is saved yet' if folder else 'the job has no saving.folder'}"
    left = following.allowed - following.used
    tell(f"restarting {start}; {left} more without a newer checkpoint {'is' if left == 1 else 'are'} allowed.")
    return following


def tell(sentence: str) -> None:
    print(f"trimaran: {sentence}", file=sys.stderr, flush=True)


def execute_again(restarts: Restarts) -> int:
    """Does not return, unless a signal stops the run before: then its exit code."""
    if not is_stopped_within(restarts.pause_seconds):
        os.environ[VARIABLE] = f"{os.getpid()} {restarts.used} {restarts.iteration}"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return INTERRUPTED


def is_stopped_within(seconds: float) -> bool:
    """Wait, but not longer than until a stop signal, which are blocked."""
    if signal.sigtimedwait(STOP_SIGNALS, seconds) is None:
        return False
    tell("interrupted before a restart; what was saved remains.")
    return True
