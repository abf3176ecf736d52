"""Processes that tests start: each is ended, and its pipes are closed, whatever happens to its test."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimaran.processes.kernel import wait_for

LIMIT_SECONDS = 600.0  # for hangs, not for speed: a busy machine may be twenty times slower
Process = subprocess.Popen[str]
_started: list[Process] = []


def start(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None, keep: bool = False
) -> Process:
    """With pipes for stdout and stderr. `keep`: beyond the end of this test."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if not keep:
        _started.append(process)
    return process


def finish(process: Process) -> tuple[str, str]:
    """Its stdout and stderr; a process that hangs is killed, and fails the test."""
    try:
        return process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        end(process)
        raise AssertionError(f"{process.args!r} did not end in {LIMIT_SECONDS:.0f} s") from None


def end(process: Process) -> None:
    """Its pipes are closed here, because a grandchild that still has them would make `communicate` wait."""
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def end_all() -> None:
    while _started:
        end(_started.pop())


def gone_within(seconds: float, pid: int) -> bool:
    """Whether the process, which need not be a child, ends in this time."""
    return wait_for(pid, seconds)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits until the condition holds, and returns what it returned."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen in {LIMIT_SECONDS:.0f} s")
