"""Program: a process that is watched, disturbed and ended with everything that it started."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "TRIMARAN_FAULTS"  # in the environment of everything that the campaign starts
POLL_SECONDS = 0.005


class Stopped(Exception):
    """The campaign is being ended by Ctrl-C."""


@dataclass(frozen=True)
class Ended:
    code: int | None  # None: it hung, and was killed
    out: str
    err: str
    command: str

    @property
    def said(self) -> str:
        """The last line of stderr, for a table."""
        return last_line(self.err)[:160]

    @property
    def losses(self) -> dict[int, float]:
        return dict(losses_of(self.out))

    def not_a_sentence(self) -> str:
        """Why this is not exit code 2 with one sentence on stderr; '' where it is."""
        if self.code is None:
            return "hung"
        if self.code != 2:
            return f"exit code {self.code}, said {self.said!r}"
        return self.bad_words()

    def bad_words(self) -> str:
        """What no user should have to read."""
        for words in ("Traceback (most recent call last)", "dict_keys", "JSONDecodeError", "/pytorch/"):
            if words in self.err:
                return f"said {words!r}: {self.said!r}"
        return "" if self.err.strip() else "said nothing"


class Program:
    """Output goes to files, so that a process which outlives it holds no pipe of ours."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mark: str,
        output: Path,
        folder: Path | None,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.command = shlex.join(["trimaran", *command[3:]] if "trimaran.cli.main" in command else command)
        self.mark, self.is_stopping = mark, is_stopping
        self.out, self.err = output / "stdout", output / "stderr"
        self.followed: dict[int, tuple[float, float]] = {}  # iteration -> when it was first seen, its loss
        self.position = 0
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, seconds: float, until: Callable[[], Any] = lambda: False) -> bool:
        """Until the condition holds or the process has ended; False: neither in this time."""
        deadline = time.monotonic() + seconds
        while not until() and self.process.poll() is None:
            if self.is_stopping():
                raise Stopped
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def finish(self, limit_seconds: float) -> Ended:
        code = self.process.returncode if self.wait(limit_seconds) else None
        if code is None:
            self.kill()
        return Ended(code, text_of(self.out), text_of(self.err), self.command)

    def kill(self) -> None:
        """With -9, the parent first, then all that it started, until none is left."""
        self.process.kill()
        while left := self.processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(POLL_SECONDS)
        self.process.wait()

    def processes(self) -> list[int]:
        """Itself and what it started, wherever these went."""
        return marked_processes(self.mark)

    def left_after(self, seconds: float) -> list[int]:
        """What it started and has not ended so many seconds after it."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def follow(self) -> int:
        """Read the log as far as it is; the last iteration in it, 0 where there is none."""
        with self.out.open("rb") as log:
            log.seek(self.position)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.position += len(whole)
        now = time.monotonic()
        for iteration, loss in losses_of(whole.decode(errors="replace")):
            self.followed[iteration] = now, loss
        return max(self.followed, default=0)

    def until_iteration(self, iteration: int, seconds: float) -> bool:
        return self.wait(seconds, lambda: self.follow() >= iteration) and self.follow() >= iteration


def forked(parent: int) -> list[int]:
    """Its children by age that were forked without exec, as ranks are."""
    try:
        own = (Path("/proc") / str(parent) / "cmdline").read_bytes()
        children = (Path("/proc") / str(parent) / "task" / str(parent) / "children").read_text().split()
        return [int(pid) for pid in children if (Path("/proc") / pid / "cmdline").read_bytes() == own]
    except OSError:
        return []


def losses_of(log: str) -> list[tuple[int, float]]:
    """Iteration and loss, as printed; more than once for one that was done again."""
    lines = [line for line in log.splitlines() if line.startswith(" iteration ") and "lm loss: " in line]
    return [(int(line[11:].split("/")[0]), float(line.split("lm loss: ")[1].split(" |")[0])) for line in lines]


def marked_processes(mark: str) -> list[int]:
    """Processes whose mark begins so. One that has ended and was not waited for has no environment any more."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if any(word.startswith(wanted) for word in (entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def last_line(text: str) -> str:
    """With words in it: typer draws boxes."""
    lines = [line.strip(" │") for line in text.splitlines() if any(letter.isalpha() for letter in line)]
    return lines[-1] if lines else "nothing"


def text_of(file: Path) -> str:
    return file.read_text(errors="replace")
