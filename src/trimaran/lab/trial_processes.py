"""The processes of a trial, found by the trial's name in their environment.

A process group is not enough, because torchrun's and SLURM's workers have sessions of their own. Only the standard
library, as in everything that the supervisor imports.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimaran.processes.kernel import kill, wait_for

MARK = "TRIMARAN_TRIAL"
SECONDS_TO_END = 5.0


def processes_of(trial: str) -> list[int]:
    """Of this user on this machine, without this process."""
    wanted, found = f"{MARK}={trial}".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it ended, or is another user's
            continue
    return found


def end_all(trial: str) -> None:
    """Kill until none is left, because a process may start another while it is being killed."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (left := processes_of(trial)) and time.monotonic() < deadline:
        for pid in left:
            kill(pid, signal.SIGKILL)
        for pid in left:
            wait_for(pid, 1.0)


def oom_kills() -> int:
    """How many processes the kernel has killed on this machine since it booted, because memory ran out."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def signal_step(slurm: Mapping[str, Any] | None, signal_name: str) -> bool:
    """Send a signal to all tasks of the trial's SLURM step, and say whether there is one. SIGTERM to srun itself would
    kill the tasks at once."""
    job = (slurm or {}).get("job") or os.environ.get("SLURM_JOB_ID")
    if slurm is None or not job:
        return False
    listed = subprocess.run(
        ["squeue", "-h", "-s", "-j", job, "-o", "%i|%j"], capture_output=True, text=True, check=False
    )
    steps = [line.split("|")[0] for line in listed.stdout.splitlines() if line.strip().endswith(f"|{slurm['name']}")]
    for step in steps:  # its exit code says little: it has failed after the signal had arrived
        subprocess.run(["scancel", f"--signal={signal_name}", step], capture_output=True, check=False)
    return bool(steps)
