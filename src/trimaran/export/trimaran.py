"""Our own trainer: job.yaml, a script that trains it here, and a batch script that goes on by itself under SLURM."""

import shlex
from typing import Any

import yaml

from trimaran.export.exported import Exported
from trimaran.export.fitting import fitted
from trimaran.export.found import Found
from trimaran.export.slurm import options
from trimaran.spec import Job, presets

TRAINER = "trimaran"
END = "END_OF_JOB"  # of the job inside a batch script
RUN = """#!/bin/bash
# Trains job.yaml on this machine, in a process for each device of its layout; options go to `trimaran train`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec trimaran train job.yaml "$@"
"""


def to_trimaran(job: Job) -> Exported:
    job, cannot = fitted(job, presets.trainer(TRAINER))
    files = {"job.yaml": job.to_yaml(), "run.sh": RUN, "train.slurm": _batch_script(job, "job.yaml")}
    return Exported(files, tuple(cannot))


def to_slurm(job: Job) -> Exported:
    """One file that holds the job, to be given to sbatch."""
    job, cannot = fitted(job, presets.trainer(TRAINER))
    held = [
        'job="$SLURM_SUBMIT_DIR/$SLURM_JOB_NAME-$SLURM_JOB_ID.yaml" # every node reads it',
        f"cat > \"$job\" <<'{END}'",
        job.to_yaml() + END,
    ]
    return Exported({"train.slurm": _batch_script(job, '"$job"', held)}, tuple(cannot))


def from_slurm(text: str) -> Found | None:
    """The job inside a script of ours, or None."""
    _, begun, rest = text.partition(f"<<'{END}'\n")
    body, ended, _ = rest.partition(f"\n{END}\n")
    if not begun or not ended:
        return None
    values: dict[str, Any] = yaml.safe_load(body)
    cluster = values.pop("cluster")
    values.pop("trainer")
    return Found({**values, "nodes": cluster["nodes"], "devices_per_node": cluster["devices_per_node"]}, TRAINER)


def _batch_script(job: Job, file: str, held: list[str] | None = None) -> str:
    """Before its time is over SLURM sends SIGUSR1; the run saves, ends with code 5, and goes on in the same job."""
    more = ["--signal=USR1@300", "--requeue", "--open-mode=append"]
    name = file if file.startswith('"') else shlex.quote(file)
    lines = [
        *options(job, job.cluster.devices_per_node, more=more),
        'cd "$SLURM_SUBMIT_DIR"',
        *(held or []),
        f'srun -K0 --wait=60 -c "${{SLURM_CPUS_PER_TASK:-1}}" trimaran train {name}',
        "code=$?",
        "# 5: told to stop, and saved. Anything else ends the job.",
        'if [ "$code" -eq 5 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        'exit "$code"',
        "",
    ]
    return "\n".join(lines)
