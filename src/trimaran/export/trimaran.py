"""Our own trainer: job.yaml, a script that trains it here, and a batch script that resumes by itself under SLURM."""

from collections.abc import Sequence

from trimaran.export.adapt import LaunchFiles, adapt_job
from trimaran.export.launch_script import sbatch_header
from trimaran.export.partial_job import PartialJob
from trimaran.spec import Job, Mistake, presets
from trimaran.spec.documents import parse_yaml

TRAINER = "trimaran"
END = "END_OF_JOB"  # ends the here-document with the job
RUN = """#!/bin/bash
# Trains job.yaml on this machine, in a process for each device of its layout; options go to `trimaran train`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec trimaran train job.yaml "$@"
"""


def to_trimaran(job: Job) -> LaunchFiles:
    job, unsupported = adapt_job(job, presets.trainer(TRAINER))
    files = {"job.yaml": job.to_yaml(), "run.sh": RUN, "train.slurm": _batch_script(job, "job.yaml")}
    return LaunchFiles(files, tuple(unsupported))


def to_slurm(job: Job) -> LaunchFiles:
    """One file for sbatch, with the job inside."""
    job, unsupported = adapt_job(job, presets.trainer(TRAINER))
    embedded_job = [
        'job="$SLURM_SUBMIT_DIR/$SLURM_JOB_NAME-$SLURM_JOB_ID.yaml" # every node reads it',
        f"cat > \"$job\" <<'{END}'",
        job.to_yaml() + END,
    ]
    return LaunchFiles({"train.slurm": _batch_script(job, '"$job"', embedded_job)}, tuple(unsupported))


def from_slurm(text: str) -> PartialJob | None:
    """The job inside a script of ours, or None."""
    _, opened, rest = text.partition(f"<<'{END}'\n")
    body, closed, _ = rest.partition(f"\n{END}\n")
    if not opened or not closed:
        return None
    values = parse_yaml(body, "The job in the script")
    cluster = values.pop("cluster", None) if isinstance(values, dict) else None
    if not isinstance(cluster, dict) or not {"nodes", "devices_per_node"} <= cluster.keys():
        raise Mistake("The job in the script has no cluster with nodes and devices_per_node; was it edited?")
    values.pop("trainer", None)
    return PartialJob({**values, "nodes": cluster["nodes"], "devices_per_node": cluster["devices_per_node"]}, TRAINER)


def _batch_script(job: Job, file: str, embedded_job: Sequence[str] = ()) -> str:
    """SLURM sends SIGUSR1 before the time limit; the run saves, ends with code 5, and resumes in the requeued job."""
    lines = [
        *sbatch_header(job, job.cluster.devices_per_node, "--signal=USR1@300", "--requeue", "--open-mode=append"),
        'cd "$SLURM_SUBMIT_DIR"',
        *embedded_job,
        f'srun -K0 --wait=60 -c "${{SLURM_CPUS_PER_TASK:-1}}" trimaran train {file}',
        "code=$?",
        "# 5: asked to stop, and saved. Anything else ends the job.",
        'if [ "$code" -eq 5 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        'exit "$code"',
        "",
    ]
    return "\n".join(lines)
