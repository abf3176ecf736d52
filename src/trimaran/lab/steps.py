"""The SLURM step of a trial, to which signals go: SIGTERM to srun itself would kill the tasks at once."""

import os
import subprocess
from collections.abc import Mapping
from typing import Any


def signal_step(slurm: Mapping[str, Any] | None, signal_name: str) -> bool:
    """Send a signal to all tasks of the trial's step. False where there is none."""
    job = (slurm or {}).get("job") or os.environ.get("SLURM_JOB_ID")
    if slurm is None or not job:
        return False
    listed = subprocess.run(
        ["squeue", "-h", "-s", "-j", job, "-o", "%i|%j"], capture_output=True, text=True, check=False
    )
    steps = [line.split("|")[0] for line in listed.stdout.splitlines() if line.strip().endswith(f"|{slurm['name']}")]
    for step in steps:  # its exit code says little: it was seen to fail after the signal had arrived
        subprocess.run(["scancel", f"--signal={signal_name}", step], capture_output=True, check=False)
    return bool(steps)
