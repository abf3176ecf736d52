"""The batch script of a SLURM site: options in its first lines, then one command on every node."""

import re
from collections.abc import Sequence

from trimaran.spec import Job

CPU_DEVICES = ("cpu-", "a64fx")  # of which a node's GPUs are not to be asked
SITE = "# Your site may want more: --account, --partition, --constraint, --qos, --cpus-per-task."


def options(job: Job, tasks_per_node: int, hours: int = 20, more: Sequence[str] = ()) -> list[str]:
    cluster = job.cluster
    gpus = [] if cluster.device.name.startswith(CPU_DEVICES) else [f"--gres=gpu:{cluster.devices_per_node}"]
    wanted = [
        f"--job-name={plain_name(job.name)}",
        f"--nodes={cluster.nodes}",
        f"--ntasks-per-node={tasks_per_node}",
        *gpus,
        f"--time={hours}:00:00",
        "--output=%x-%j.out",
        *more,
    ]
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in wanted), SITE, ""]


def launching(job: Job, script: str) -> str:
    """A launch script on every node: one task each, which starts the node's processes; all meet on the first."""
    lines = [
        *options(job, tasks_per_node=1),
        "set -e",
        'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        "export MASTER_ADDR",
        'export MASTER_PORT="${MASTER_PORT:-6000}"',
        "",
        "# When a task ends the others get 60 s; when one fails, all end.",
        f'srun --wait=60 --kill-on-bad-exit=1 --jobid "$SLURM_JOB_ID" bash "$SLURM_SUBMIT_DIR/{script}"',
        "",
    ]
    return "\n".join(lines)


def plain_name(name: str) -> str:
    """A job's name without what a shell or SLURM would read otherwise."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "job"
