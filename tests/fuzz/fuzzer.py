"""Call commands in this process with hostile input. A call may succeed or end with one sentence and exit code 2.

Anything else is a failure: an exception, a warning of NumPy, another exit code, output that is not JSON where JSON was
asked for, or more than CPU_SECONDS. The same seed and number make the same call: `replay` shows it.
"""

import io
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest.mock import patch

from tests.fuzz.cases import KINDS, Case

CPU_SECONDS = 30.0  # of one call; the slowest good one takes one or two


@dataclass(frozen=True)
class Failure:
    kind: str
    seed: int
    number: int
    command: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 60 else f"{word[:60]}…" for word in self.command)
        return f"{self.what} in `trimaran {words}`: replay({self.kind!r}, {self.seed}, {self.number})"


class TookTooLong(BaseException):
    """No Exception, so that no handler of ours takes it for one."""


def fuzz(seed: int, seconds: float, kinds: Sequence[str] = (*KINDS,), calls: int | None = None) -> list[Failure]:
    """Call for so long, or so often, the kinds in turn."""
    failures, number, end = list[Failure](), 0, time.monotonic() + seconds
    while time.monotonic() < end and (calls is None or number < calls):
        kind = kinds[number % len(kinds)]
        files, command = case(kind, seed, number)
        what = call(files, command)
        if what:
            failures.append(Failure(kind, seed, number, tuple(command), what))
        number += 1
    return failures


def case(kind: str, seed: int, number: int) -> Case:
    return KINDS[kind](Random(f"{kind} {seed} {number}"))


def replay(kind: str, seed: int, number: int) -> None:
    """With its traceback, and its files in the current folder."""
    files, command = case(kind, seed, number)
    _write(files, Path())
    print("trimaran", *command)
    _run(command)


def call(files: dict[str, str | bytes], command: list[str]) -> str | None:
    """What went wrong, or None."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(out), redirect_stderr(err):
        _write(files, Path())
        try:
            with cpu_limit(CPU_SECONDS), warnings.catch_warnings():
                warnings.simplefilter("error")
                _run(command)
            code: object = 0
        except SystemExit as ended:
            code = ended.code or 0
        except TookTooLong:
            return f"more than {CPU_SECONDS:g} s"
        except Exception as error:  # every one of them is a finding
            return f"{type(error).__name__}: {str(error)[:200]}{_where(error)}"
    if code not in (0, 2):
        return f"exit code {code}"
    if code == 2 and (not err.getvalue().strip() or "Traceback" in err.getvalue()):
        return "exit code 2 without a sentence"
    if code == 0 and "--json" in command:
        return _json_problem(out.getvalue())
    return None


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Of this process's own time, since a busy machine is no fault of the command."""

    def stop(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)  # again, should the first be raised where it is ignored
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _run(command: list[str]) -> None:
    from trimaran.cli.main import run

    with patch.object(sys, "argv", ["trimaran", *command]), patch.dict(os.environ):
        os.environ.pop("TRIMARAN_LEDGER", None)
        run()


def _write(files: dict[str, str | bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))


def _where(error: BaseException) -> str:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})"


def _json_problem(text: str) -> str | None:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} in the output")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"not JSON: {error}"
    return None
