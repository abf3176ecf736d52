"""Overhead of a trial beside its trainer, and whether a thousand trials leak anything.

    python benchmarks/lab_overhead.py [--trials 1000] [--slurm 200]

The trainer prints the time and exits, so that nearly all of a trial's time is the harness's. --slurm N runs N trials
through a real SLURM of four nodes on this machine (Debian's packages), four at a time. Goal: under a second per trial,
no process left, and no more open files and memory at the end than after the first tenth.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.lab.sweeps import MEGATRON
from tests.slurm.cluster import SlurmCluster, missing_programs

from trimaran.cli.show import print_table
from trimaran.lab.trial_processes import processes_of

GOAL_SECONDS = 1.0
TRAINER = f"echo began $(date +%s.%N); {MEGATRON}; echo ended $(date +%s.%N)"


def memory_and_files(pid: int) -> tuple[float, int]:
    """MiB and open files of a process."""
    pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    return pages * 4096 / 2**20, len(list((Path("/proc") / str(pid) / "fd").iterdir()))


def run(folder: Path, trials: int, place: dict[str, Any], environment: Mapping[str, str] | None) -> dict[str, Any]:
    sweep = {"base": "tiny", "command": TRAINER, "axes": {"seed": list(range(trials))}, "place": place}
    (folder / "dummies.yaml").write_text(yaml.safe_dump(sweep))
    command = [sys.executable, "-m", "trimaran.cli.main", "sweep", "dummies.yaml", "--json"]
    with (folder / "swept.json").open("w") as out:
        harness = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.DEVNULL, env=environment)
        usage = []
        while harness.poll() is None:
            done = len(list((folder / "sweeps" / "dummies" / "trials").glob("*/outcome.json")))
            usage.append((done, *memory_and_files(harness.pid)))
            time.sleep(0.5)
    return {**json.loads((folder / "swept.json").read_text()), "usage": usage}


def stamps(folder: Path) -> list[tuple[float, float, float, float]]:
    """When each trial was ordered, when its trainer began and ended, and when its outcome was on disk."""
    found = []
    for trial in sorted((folder / "sweeps" / "dummies" / "trials").iterdir()):
        lines = (trial / "stdout").read_text().splitlines()
        began, ended = (float(lines[i].split()[1]) for i in (0, -1))
        ordered, kept = ((trial / file).stat().st_mtime for file in ("job.yaml", "outcome.json"))
        found.append((ordered, began, ended, kept))
    return found


def report(name: str, folder: Path, swept: dict[str, Any]) -> bool:
    times = stamps(folder)
    starts = [began - ordered for ordered, began, _, _ in times]
    ends = [kept - ended for _, _, ended, kept in times]
    early = next(row for row in swept["usage"] if row[0] >= len(times) / 10)
    last = swept["usage"][-1]
    left = sum(len(processes_of(trial["id"])) for trial in swept["trials"])
    print_table(
        f"{len(times)} trials, {name}: {dict(swept['counts'])}",
        ("", "median", "95 %", "worst"),
        [
            (what, *(f"{value:.3f} s" for value in (statistics.median(v), statistics.quantiles(v, n=20)[-1], max(v))))
            for what, v in (("order to trainer's start", starts), ("trainer's end to the outcome kept", ends))
        ],
    )
    print(
        f"Harness: {early[1]:.1f} MiB and {early[2]} files after a tenth, {last[1]:.1f} MiB and {last[2]} at the end;"
        f" {left} processes left."
    )
    overhead = statistics.median(starts) + statistics.median(ends)
    print(f"Overhead a trial: {overhead:.3f} s (goal {GOAL_SECONDS}).")
    return overhead < GOAL_SECONDS and not left and last[1] < early[1] + 20 and last[2] <= early[2] + 4


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--slurm", type=int, default=200)
    asked = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as name:
        swept = run(Path(name), asked.trials, {"kind": "local"}, None)
        good &= report("this machine", Path(name), swept)
    if missing_programs():
        print(f"SLURM is not installed ({', '.join(missing_programs())} missing): not measured.")
    elif asked.slurm:
        with SlurmCluster() as slurm, tempfile.TemporaryDirectory() as name:
            swept = run(Path(name), asked.slurm, {"kind": "slurm", "parallel": 4}, slurm.environment)
            good &= report("SLURM, queueing included", Path(name), swept)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
