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
from contextlib import suppress
from pathlib import Path
from typing import Any

BUILDING, STEPPING, VALIDATING, SAVING = "building", "stepping", "validating", "saving"
SLOW_PHASES = (BUILDING, VALIDATING, SAVING)  # which may take longer than an iteration
DONE, INTERRUPTED, NOT_FINITE = "done", "interrupted", "not finite"
END_PHASES = (DONE, INTERRUPTED, NOT_FINITE)  # after which no further heartbeat comes


class Heartbeat:
    def __init__(self, folder: Path | None, rank: int) -> None:
        self.file = folder / f"rank-{rank:05d}.json" if folder else None
        self.rank = rank
        self.host = socket.gethostname()
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            self.stack = stack_file(folder, rank).open("w")
            faulthandler.register(signal.SIGUSR2, self.stack)

    def beat(self, phase: str, iteration: int = 0) -> None:
        if self.file is None:
            return
        state = {"rank": self.rank, "pid": os.getpid(), "host": self.host, "doing": phase, "iteration": iteration}
        state["time"] = time.time()
        partial = self.file.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(state))
            partial.replace(self.file)  # a reader sees the old or the new, never half of one
        except OSError as error:
            warn(f"heartbeats of rank {self.rank} cannot be written any more: {error.strerror}.")
            self.file = None


def warn(sentence: str) -> None:
    """On stderr, if that can still be written."""
    with suppress(OSError):
        print(f"trimaran: warning: {sentence}", file=sys.stderr, flush=True)


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
