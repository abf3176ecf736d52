"""What the command lines `trimaran` and `python -m trimaran.engine` share: exit codes, missing packages, `--set`."""

import atexit
import errno
import gc
import math
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from trimaran.processes.signals import exit_at_signals, ignore_stop_signals

CTRL_C = 130
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # of the disk, not of a program
YOUNG_OBJECTS = 50_000  # before Python's garbage collector runs, instead of 700

SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field of the job, as in layout.tp=2; may be repeated.")
]


def finite(value: float | None) -> float | None:
    """Callback of an option: click's ranges let NaN pass, and infinity where they have no end."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value:g} is not a finite number.")
    return value


def run_command(command: Callable[[], object], interrupted: int | None = None) -> None:
    """Exit codes: 0 done, 2 a mistake of the user's (one sentence on stderr), 130 interrupted.
    `interrupted`: the exit code of a command that starts ranks, when a signal stops it while it has none."""
    if interrupted is not None:
        exit_at_signals(interrupted)
    # What is imported stays to the end. Searching all of PyTorch for garbage takes half a second while it is imported,
    # and again at the exit.
    gc.set_threshold(YOUNG_OBJECTS)
    atexit.register(gc.freeze)
    try:
        _flushed(command)
    except SystemExit as ended:
        if interrupted is not None:
            ignore_stop_signals()
        if ended.code == CTRL_C:  # typer caught Ctrl-C
            print("trimaran: interrupted; nothing was written.", file=sys.stderr)
        raise
    except BrokenPipeError:  # `trimaran results | head`
        _drop_output()
        sys.exit(0)
    except OSError as error:
        disk = error.errno in DISK_ERRORS
        if error.filename is None and not disk:
            raise
        from trimaran.spec.mistake import shortened

        if disk:
            _drop_output()
        what = shortened(str(error.filename)) if error.filename else "The output"
        why = "written" if disk else "used"  # a name that is too long, a folder that may not be entered
        print(f"trimaran: {what} cannot be {why}: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
    except ValueError as error:
        from trimaran.spec import Mistake

        if not isinstance(error, Mistake):
            raise
        print(f"trimaran: {error}", file=sys.stderr)
        sys.exit(2)


def _flushed(command: Callable[[], object]) -> None:
    """Write all output here, where an error becomes a sentence, and not while Python exits."""
    try:
        command()
    except SystemExit as ended:
        if not ended.code:
            sys.stdout.flush()
        raise
    sys.stdout.flush()


def _drop_output() -> None:
    """What could not be printed, which Python would try again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def need_torch(command: str) -> None:
    """Planning installs without PyTorch; a command that runs the engine says so where it is missing."""
    from trimaran.spec.mistake import require_package

    require_package("torch", f"`{command}`", "train")
