"""`trimaran sweep` as its own process, and what it leaves: folders, processes, rows of the ledger."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.engine.commands import ENVIRONMENT, TRIMARAN
from trimaran.lab.processes import processes_of
from trimaran.ledger.store import Ledger
from trimaran.spec import Trial

LIMIT_SECONDS = 60.0
# A trainer that is not ours: it prints what Megatron-LM prints.
MEGATRON = (
    "echo '  num_layers ...................................... {layers}';"
    "echo '  hidden_size ..................................... {hidden}';"
    "for i in 1 2 3 4 5 6; do"
    ' printf " iteration %8d/       6 | consumed samples: %12d | elapsed time per iteration (ms): 250.0 |'
    ' global batch size: {gbs} | lm loss: 5.0E+00 |\\n" $i $((i * {gbs})); done'
)


def sweep_file(folder: Path, **values: Any) -> Path:
    """With quick defaults: the job `tiny` on one process."""
    measuring = {"iterations": 4, "least": 3, "tolerance": 10.0, "minutes": 2, **values.pop("measuring", {})}
    file = folder / "s.yaml"
    file.write_text(yaml.safe_dump({"base": "tiny", "measuring": measuring, **values}))
    return file


def start(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """In the folder, where its sweeps/ and its ledger go."""
    environment = {**(environment or ENVIRONMENT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*TRIMARAN, "sweep", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    process = start(folder, *arguments, environment=environment)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out, err


def swept(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What --json says of a sweep that ended by itself."""
    code, out, err = finished(folder, *arguments, "--json", environment=environment)
    assert code == 0, err
    told: dict[str, Any] = json.loads(out)
    return told


def trial_folder(folder: Path, number: int = 1, name: str = "s") -> Path:
    return folder / "sweeps" / name / "trials" / f"{number:04d}"


def until(there: Callable[[], Any], what: str) -> Any:
    """Waits for a fact of the world outside, and gives it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if found := there():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def stepping(folder: Path, rank: int = 0, number: int = 1) -> int:
    """The process of a rank that has done some iterations."""
    metrics = trial_folder(folder, number) / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, "iterations")
    beat = json.loads((trial_folder(folder, number) / "heartbeats" / f"rank-{rank:05d}.json").read_text())
    return int(beat["pid"])


def rows(folder: Path) -> list[Trial]:
    with Ledger.read(folder / "trimaran.sqlite") as ledger:
        return list(ledger.trials())


def left_running(folder: Path) -> list[int]:
    """Processes of any trial of the folder's ledger."""
    return [pid for trial in rows(folder) for pid in processes_of(trial.id)]
