"""Campaign: the seed, scale and folder that all sections share, and the processes that they started."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from tests.engine.commands import ONE_THREAD, TRIMARAN

from fault_campaign.programs import MARK, Ended, Program, Stopped, marked_processes

T = TypeVar("T")
HANG_SECONDS = 240.0  # for hangs, not for speed: a busy machine may be ten times slower


@dataclass(frozen=True)
class Attempt:
    kind: str  # a row of the table
    failure: str = ""  # empty: survived
    moment: str = ""
    command: str = ""


class Skipped(Exception):
    """A section, or a part of it, that cannot run here; the text says why."""


class Campaign:
    def __init__(self, seed: int, scale: float, folder: Path) -> None:
        self.seed, self.scale, self.folder = seed, scale, folder
        self.mark = uuid.uuid4().hex
        self.number = 0
        self.stopping = False
        self.last_progress = 0.0
        self.began = time.monotonic()

    def random(self, *names: object) -> Random:
        """A stream for each place that draws, so that --only and the order of threads change no moment."""
        return Random("/".join(map(str, (self.seed, *names))))

    def count(self, at_scale_1: int) -> int:
        return max(1, round(self.scale * at_scale_1))

    def place(self, name: str) -> Path:
        """A new empty folder."""
        self.number += 1
        made = self.folder / f"{self.number:04d}-{name}"
        made.mkdir()
        return made

    def start(self, *words: str, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Program:
        """`trimaran WORDS` as its own process."""
        return self.start_command([*TRIMARAN, *words], environment, folder)

    def start_command(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> Program:
        if self.stopping:
            raise Stopped
        mark = f"{self.mark}-{uuid.uuid4().hex}"
        variables = {**ONE_THREAD, **(environment or {}), MARK: mark}
        return Program(command, variables, mark, self.place("program"), folder, lambda: self.stopping)

    def run(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        limit_seconds: float = HANG_SECONDS,
    ) -> Ended:
        return self.start(*words, environment=environment, folder=folder).finish(limit_seconds)

    def in_pairs(self, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Two at a time, because most of a short run is its start on one core; results as they come."""
        with ThreadPoolExecutor(2) as pool:
            try:
                for future in as_completed([pool.submit(task) for task in tasks]):
                    yield future.result()
            except BaseException as error:
                self.stopping |= isinstance(error, KeyboardInterrupt)  # ends the waits of both threads
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def progress(self, text: str, every_seconds: float = 5.0) -> None:
        now = time.monotonic()
        if now - self.last_progress >= every_seconds:
            self.last_progress = now
            print(f"[{now - self.began:5.0f} s] {text}", flush=True)

    def end_all(self) -> None:
        """Kill until none is left, because a process may start another while it is being killed."""
        while left := marked_processes(self.mark):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
