"""`trimaran sweep` as its own process, and what it leaves: folders, processes, rows of the ledger."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.engine.commands import ENVIRONMENT, TRIMARAN
from tests.processes import Process, finish, until
from tests.processes import start as start_process
from trimaran.lab.files import read_json
from trimaran.lab.trial_processes import processes_of
from trimaran.ledger.store import Ledger
from trimaran.spec import Trial

# A trainer that is not ours: it prints what Megatron-LM prints.
MEGATRON = (
    "echo '  num_layers ...................................... {layers}';"
    "echo '  hidden_size ..................................... {hidden}';"
    "for i in 1 2 3 4 5 6; do"
    ' printf " iteration %8d/       6 | consumed samples: %12d | elapsed time per iteration (ms): 250.0 |'
    ' global batch size: {gbs} | lm loss: 5.0E+00 |\\n" $i $((i * {gbs})); done'
)


def waiting_for(file: Path) -> str:
    """A shell command that waits for a file, so that a test decides when a trial goes on."""
    return f"until [ -e {file} ]; do sleep 0.05; done"


def sweep_file(folder: Path, **values: Any) -> Path:
    """With short defaults: the job `tiny` on one process."""
    measuring = {"iterations": 4, "least": 3, "tolerance": 10.0, **values.pop("measuring", {})}
    file = folder / "s.yaml"
    file.write_text(yaml.safe_dump({"base": "tiny", "measuring": measuring, **values}))
    return file


def start(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, keep: bool = False) -> Process:
    """In the folder, where its sweeps/ and its ledger go."""
    environment = {**(environment or ENVIRONMENT), "OMP_NUM_THREADS": "1"}
    return start_process([*TRIMARAN, "sweep", *arguments], environment, folder, keep)


def finished(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    process = start(folder, *arguments, environment=environment)
    out, err = finish(process)
    return process.returncode, out, err


def swept(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The --json output of a sweep that ended by itself."""
    code, out, err = finished(folder, *arguments, "--json", environment=environment)
    assert code == 0, err
    summary: dict[str, Any] = json.loads(out)
    return summary


def trials_of(harness: Process) -> list[dict[str, Any]]:
    """Of a harness that was started with --json, when it has ended."""
    trials: list[dict[str, Any]] = json.loads(finish(harness)[0])["trials"]
    return trials


def trial_folder(folder: Path, number: int = 1, name: str = "s") -> Path:
    return folder / "sweeps" / name / "trials" / f"{number:04d}"


def until_started(folder: Path, number: int = 1) -> Path:
    """The folder of a trial whose trainer has been started."""
    trial = trial_folder(folder, number)
    until((trial / "started.json").exists, f"the start of trial {number}")
    return trial


def stepping(folder: Path, rank: int = 0, number: int = 1) -> int:
    """The process of a rank that has done some iterations."""
    metrics = trial_folder(folder, number) / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, "the first iterations")
    beat = json.loads((trial_folder(folder, number) / "heartbeats" / f"rank-{rank:05d}.json").read_text())
    return int(beat["pid"])


def rows(folder: Path) -> list[Trial]:
    with Ledger.read(folder / "trimaran.sqlite") as ledger:
        return list(ledger.trials())


def left_running(folder: Path) -> list[int]:
    """Processes of any trial of the folder's ledger."""
    return [pid for trial in rows(folder) for pid in processes_of(trial.id)]


ON_NODES = {"preset": "here", "devices_per_node": 1, "nodes": 2}


def slurm_sweep(folder: Path, **values: Any) -> None:
    base = {
        "model": {"layers": 2, "hidden": 32, "heads": 2, "vocab": 128, "seq_len": 32},
        "cluster": ON_NODES,
        "layout": {"dp": 2, "micro_batch": 1},
        "batch": {"size": 8},
        "precision": "fp32",
    }
    place = {"kind": "slurm", "parallel": 4, **values.pop("place", {})}
    sweep_file(folder, base=base, place=place, **values)


def submitted(folder: Path, number: int = 1) -> str:
    """The SLURM job of a trial whose trainer was started."""
    return str((read_json(until_started(folder, number) / "submitted.json") or {})["job"])
