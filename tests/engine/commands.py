"""`trimaran train` as its own process: started, read line by line, and its ranks found."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.processes import Process, finish, gone_within, start

TRIMARAN = [sys.executable, "-m", "trimaran.cli.main"]
ENVIRONMENT = {
    key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "RANK", "WORLD_SIZE", "MASTER_"))
}
ONE_THREAD = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}  # threads of tiny operations wait for each other on a busy machine
__all__ = [
    "ENVIRONMENT",
    "ONE_THREAD",
    "TRIMARAN",
    "finished",
    "gone_within",
    "losses",
    "rank_pids",
    "train",
    "until_iteration",
]


def train(*arguments: str, environment: Mapping[str, str] | None = None, limit: str = "", shell: str = "") -> Process:
    """`limit`: words for the shell's ulimit, such as '-v 4000000'; `shell`: a line that runs "$@"."""
    command = [*TRIMARAN, "train", *arguments]
    if limit or shell:
        command = ["bash", "-c", shell or f'ulimit {limit}; exec "$@"', "bash", *command]
    return start(command, {**ONE_THREAD, **(environment or {})})


def finished(*arguments: str, environment: Mapping[str, str] | None = None, limit: str = "") -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = train(*arguments, environment=environment, limit=limit)
    out, err = finish(process)
    return process.returncode, out, err


def until_iteration(process: Process, iteration: int) -> None:
    """Read the log up to the line of this iteration, or of a later one."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(" iteration ") and int(line[11:19]) >= iteration:
            return
    raise AssertionError(f"the run ended before iteration {iteration}: {process.communicate()[1]}")


def rank_pids(heartbeats: Path) -> list[int]:
    return [json.loads(file.read_text())["pid"] for file in sorted(heartbeats.glob("rank-*.json"))]


def losses(log: str) -> list[str]:
    return [line.split("lm loss: ")[1].split(" |")[0] for line in log.splitlines() if "lm loss: " in line]
