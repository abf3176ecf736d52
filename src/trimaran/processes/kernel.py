"""What the kernel knows of a process and does to it. Only the standard library, because the supervisor of a trial
imports this."""

import ctypes
import os
import select
import signal
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOPPED = ("T", "t")  # by a signal, by a debugger
_libc = ctypes.CDLL(None)  # loaded here: a forked child should not have to


def kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def wait_for(pid: int, seconds: float) -> bool:
    """Whether a process, which need not be a child, ends in this time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def state_of(pid: int) -> str:
    """The kernel's letter: R running, S sleeping, D in a system call, T stopped, Z ended, and '' for gone."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def has_open(pid: int, file: Path) -> bool:
    """Whether this process has this file open, which tells it from a later one with the same pid."""
    try:
        wanted = file.stat()
        return any(os.path.samestat(entry.stat(), wanted) for entry in _open_files(pid))
    except OSError:
        return False


def _open_files(pid: int) -> list["os.DirEntry[str]"]:
    with os.scandir(f"/proc/{pid}/fd") as entries:
        return [entry for entry in entries if os.readlink(entry.path).startswith("/")]


def end_with_parent(parent: int) -> None:
    """Called in a child: the kernel kills it when its parent ends, however it does, also while the child is stopped.
    The parent is the thread that forked, so this is for children of a main thread."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)
