"""Heartbeats: one small file per rank, replaced whenever the rank makes progress, for a watchdog outside the run; and
the rank's stack beside it, when the watchdog asks for it with SIGUSR2.

Only the standard library, because the supervisor of a trial imports this.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

STARTING = "starting"  # said of a rank that has written no heartbeat
BUILDING, STEPPING, VALIDATING, SAVING = "building", "stepping", "validating", "saving"
SLOW_PHASES = (BUILDING, VALIDATING, SAVING)  # which may take longer than an iteration
DONE, INTERRUPTED, NOT_FINITE = "done", "interrupted", "not finite"
END_PHASES = (DONE, INTERRUPTED, NOT_FINITE)  # after which no further heartbeat comes


class Heartbeat:
    """Telemetry: where it cannot be written, as on a full disk, this is told once and training continues without."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.file = folder / f"rank-{rank:05d}.json" if folder else None
        self.rank = rank
        self.host = socket.gethostname()
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self.stack = stack_file(folder, rank).open("w")
            except OSError as error:
                self._give_up(error)
                return
            faulthandler.register(signal.SIGUSR2, self.stack)
            faulthandler.enable(self.stack)  # NCCL ends a rank whose collective timed out with SIGABRT

    def beat(self, phase: str, iteration: int = 0) -> None:
        if self.file is None:
            return
        state = {"rank": self.rank, "pid": os.getpid(), "host": self.host, "doing": phase, "iteration": iteration}
        try:
            _replace(self.file, state | {"time": time.time()})
        except OSError as error:
            self._give_up(error)

    def leave_traceback(self, error: BaseException) -> None:
        """Where the rank's stack would be, which is gone."""
        if self.file is not None:
            with suppress(OSError):
                traceback.print_exception(error, file=self.stack)
                self.stack.flush()

    def _give_up(self, error: OSError) -> None:
        warn(f"{self.file} cannot be written: {error.strerror}.")
        self.file = None


def warn(sentence: str) -> None:
    """On stderr, if that can still be written."""
    with suppress(OSError):
        print(f"trimaran: warning: {sentence}", file=sys.stderr, flush=True)


def add_wait(folder: Path, rank: int, waits_in: str) -> None:
    """What a rank waited in when it gave up, added to its last heartbeat."""
    for beat in read_heartbeats(folder):
        if beat["rank"] == rank and beat["pid"] == os.getpid():
            with suppress(OSError):
                _replace(folder / f"rank-{rank:05d}.json", beat | {"waits_in": waits_in})


def _replace(file: Path, state: dict[str, Any]) -> None:
    """A reader sees the old or the new, never half of one."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(state))
    partial.replace(file)


def stack_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.stack"


def read_heartbeats(folder: Path) -> list[dict[str, Any]]:
    """The latest of every rank that has written one."""
    beats = []
    for file in folder.glob("rank-*.json"):
        try:
            beats.append(json.loads(file.read_text()))
        except (OSError, ValueError):
            continue
    return beats


def iterations_done(beats: Iterable[Mapping[str, Any]]) -> int:
    """By all ranks: one may begin an iteration only when the others have ended the one before."""
    return max((beat["iteration"] - (beat["doing"] == STEPPING) for beat in beats), default=0)
