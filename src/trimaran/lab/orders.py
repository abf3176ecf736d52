"""order.json, which the supervisor of a trial reads: the trainer's command, its environment, its limits."""

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimaran.cost.memory import GIB
from trimaran.lab import files
from trimaran.lab.sweep_folder import Attempt
from trimaran.processes.compile_cache import VARIABLE, make_private
from trimaran.processes.flight_recorder import flight_recorder
from trimaran.spec import Job, Mistake, Setup, Sweep
from trimaran.spec.files import save
from trimaran.spec.job import WARM_UP_ITERATIONS

# Placeholders of a sweep's command that have the name of a field of Setup.
OF_SETUP = (
    *("tp", "pp", "dp", "mbs", "gbs", "zero", "recompute", "nodes", "devices_per_node", "layers", "hidden"),
    *("ffn_hidden", "heads", "kv_heads", "vocab", "seq_len", "precision", "optimizer"),
)
PATIENCE_SECONDS = 60  # of our ranks in a collective


def write_order(
    sweep: Sweep,
    attempt: Attempt,
    wrapper: list[str] | None = None,
    environment: dict[str, str] | None = None,
    **more: Any,
) -> None:
    """Everything the trial needs, in its folder; the order is written last and marks the trial as started.
    `wrapper`: words before the trainer's command, such as srun's; `more`: entries of the order."""
    folder, measuring = attempt.folder, sweep.measuring
    if folder.is_symlink():
        folder.unlink()
    if folder.exists():  # without an order: what is left of a start that did not happen, or what somebody prepared
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    # A trial saves no checkpoints, and resumes from none of another.
    job = attempt.job.replace(steps=WARM_UP_ITERATIONS + measuring.iterations, saving={}, validation={})
    save(job, folder / "job.yaml")
    order = {
        "trial": attempt.id,
        "command": [*(wrapper or []), *trainer_command(sweep, job, folder)],
        "environment": {
            **compile_cache(sweep, attempt.sweep_folder, os.environ),
            **job.environment,
            **(flight_recorder(folder) if job.cluster.device.is_gpu else {}),
            **(environment or {}),
        },
        "limit_seconds": 60 * measuring.minutes,
        "memory_bytes": round(sweep.place.memory_gib * GIB) if sweep.place.memory_gib else None,
        "cpus": None,
        "slurm": None,
        "measure": {"least": measuring.least, "tolerance": measuring.tolerance},
        "patience": {
            "start": 60 * measuring.silence_minutes,
            "least": measuring.silence_seconds,
            "times": measuring.silence_times,
        },
    }
    files.write_json(folder / files.ORDER, {**order, **more})


def trainer_command(sweep: Sweep, job: Job, folder: Path) -> list[str]:
    if sweep.command is not None:
        return ["bash", "-c", fill_command(sweep.command, job, folder)]
    options = ["--metrics", folder / files.METRICS, "--heartbeats", folder / files.HEARTBEATS]
    words = [sys.executable, "-m", "trimaran.engine", folder / "job.yaml", *options, "--patience", PATIENCE_SECONDS]
    return [str(word) for word in words]


def fill_command(template: str, job: Job, folder: Path) -> str:
    """The command of another trainer for this Job."""
    values = placeholders(job, folder)
    try:
        return template.format(**values)
    except (KeyError, IndexError, ValueError) as error:
        known = " ".join(f"{{{name}}}" for name in values)
        raise Mistake(
            f"The command of the sweep cannot be formatted ({error}); it may contain {known}, and {{{{ for a brace."
        ) from None


def placeholders(job: Job, folder: Path) -> dict[str, str]:
    values = {name: getattr(Setup.of_job(job), name) for name in OF_SETUP} | {
        "vp": job.layout.virtual_stages,
        "devices": job.layout.devices,
        "steps": job.steps,
        "seed": job.seed,
        "port": free_port(),
        "job": folder / "job.yaml",
        "folder": folder,
    }
    return {name: shlex.quote(str(value)) for name, value in values.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def compile_cache(sweep: Sweep, sweep_folder: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Where PyTorch caches compiled kernels for the next trial. Its default is a folder of this machine, which local
    trials share; a SLURM job may be on another node, or have a private /tmp. PyTorch runs what it finds there."""
    if sweep.place.kind == "local" or VARIABLE in outer:
        return {}
    compiled = sweep_folder / "compiled"
    if not make_private(compiled):
        raise Mistake(
            f"{compiled} is for compiled code, which trials run, but others can write to it, or it is not your own"
            " folder: remove it."
        )
    return {VARIABLE: str(compiled)}
