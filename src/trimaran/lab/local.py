"""Trials on this machine: a supervisor for each, in its own session so that it outlives the harness."""

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from trimaran.lab import files
from trimaran.lab.orders import write_order
from trimaran.lab.slurm_messages import UNREACHABLE
from trimaran.lab.sweep_folder import Attempt
from trimaran.lab.trial_processes import end_all, processes_of
from trimaran.processes.kernel import kill
from trimaran.spec import Mistake, Sweep
from trimaran.spec.trial import Status


class LauncherStatus(NamedTuple):
    """What a launcher knows of an attempt without a result."""

    status: Status = "running"  # also of one that is queued, or where SLURM does not answer
    reason: str = ""


def still_running(attempt: Attempt) -> LauncherStatus:
    return LauncherStatus(reason=UNREACHABLE if (attempt.folder / files.WAITS).exists() else "")


def supervisor_command(attempt: Attempt) -> list[str]:
    return [sys.executable, "-m", "trimaran.lab.supervise", str(attempt.folder)]


class LocalLauncher:
    """What the harness asks of every launcher; slurm.py has the others."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.supervisors: dict[str, subprocess.Popen[str]] = {}  # started by this harness
        self.cores: dict[str, list[int]] = {}

    def has_room(self, attempt: Attempt, running: list[Attempt]) -> bool:
        return len(running) < self.sweep.place.parallel

    def start(self, attempt: Attempt) -> None:
        """Raises OSError or Mistake where it cannot be started at all."""
        write_order(self.sweep, attempt, cpus=self._cores_for(attempt))
        self.supervise(attempt)

    def supervise(self, attempt: Attempt) -> None:
        self.supervisors[attempt.id] = subprocess.Popen(
            supervisor_command(attempt),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _cores_for(self, attempt: Attempt) -> list[int] | None:
        """A share of the cores, disjoint from those of other trials."""
        if not self.sweep.place.pin:
            return None
        taken = {core for cores in self.cores.values() for core in cores}
        every = sorted(os.sched_getaffinity(0))
        share = max(1, len(every) // self.sweep.place.parallel)
        free = [core for core in every if core not in taken][:share]
        if not free:
            raise Mistake(
                f"{self.sweep.place.parallel} parallel trials cannot each have a core: this machine has {len(every)};"
                f" the nearest that works: place.parallel {len(every)}."
            )
        self.cores[attempt.id] = free
        return free

    def look(self, attempt: Attempt) -> LauncherStatus:
        supervisor = self.supervisors.get(attempt.id)
        if supervisor is None:  # started by an earlier harness
            if files.is_locked(attempt.folder / files.LOCK):
                return still_running(attempt)
            was_started = processes_of(attempt.id) or (attempt.folder / files.STARTED).exists()
            end_all(attempt.id)  # what a killed supervisor may have left
            why = "Its supervisor ended without a result, as after a kill -9 or a reboot."
            return LauncherStatus("lost", why if was_started else "Never started.")
        if supervisor.poll() is None:
            return still_running(attempt)
        stderr = supervisor.stderr.read().strip() if supervisor.stderr else ""
        self._forget(attempt)
        end_all(attempt.id)
        if stderr:
            return LauncherStatus("fail", f"The supervisor failed: {stderr.splitlines()[-1]}.")
        return LauncherStatus("lost", f"The supervisor was killed (exit code {supervisor.returncode}).")

    def why_cancelled(self, attempt: Attempt) -> LauncherStatus:
        """Of one that was ended, and not by us."""
        return LauncherStatus("cancelled", "Its supervisor was ended by a signal.")

    def withdraw(self, attempt: Attempt) -> bool:
        """Whether it was only waiting to be submitted, and now is not."""
        return False

    def cancel(self, attempt: Attempt) -> bool:
        """Whether it could be asked to end."""
        if (pid := self._pid(attempt)) is not None:
            kill(pid, signal.SIGTERM)
        return True

    def ended(self, attempt: Attempt) -> None:
        """It has left its result; its supervisor is about to end."""
        supervisor = self.supervisors.get(attempt.id)
        if supervisor is not None:
            supervisor.wait()
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        self.cores.pop(attempt.id, None)
        supervisor = self.supervisors.pop(attempt.id, None)
        if supervisor is not None and supervisor.stderr is not None:
            supervisor.stderr.close()

    def wait(self, running: list[Attempt], seconds: float) -> None:
        """Until something may have ended, or for so long."""
        with ExitStack() as handles:
            waited: list[int] = []
            for attempt in running:
                pid = self._pid(attempt)
                if pid is not None:
                    try:
                        handle = os.pidfd_open(pid)
                    except ProcessLookupError:
                        return
                    handles.callback(os.close, handle)
                    waited.append(handle)
            select.select(waited, [], [], seconds)

    def _pid(self, attempt: Attempt) -> int | None:
        if attempt.id in self.supervisors:
            return self.supervisors[attempt.id].pid
        pid = (files.read_json(attempt.folder / files.STARTED) or {}).get("supervisor")
        return pid if isinstance(pid, int) and is_supervisor(pid, attempt) else None


def is_supervisor(pid: int, attempt: Attempt) -> bool:
    """A number in a file may since be another process's, or of another node."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return [os.fsencode(word) for word in supervisor_command(attempt)[1:]] == words[1:-1]
