"""What 8-bit products cost in loss: the same training in bf16 and in fp8, on the source of the standard library.

    python benchmarks/fp8_loss.py [--job gpt-1b3-h200] [--steps 300] [--set recipe.learning_rate=2e-4 ...]

Prints the mean loss of every 50 steps of both, and how far the means of any 20 steps in a row are apart. Goal: never
more than 1 %. The job is `tiny` unless another is named; its data is the bytes of the library in any case, and the
learning rate rises over the first 50 steps, without which large models go astray in any precision. Both run at once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stdlib_training import TRIMARAN, prepare
from trimaran.cli.show import print_table
from trimaran.spec.changes import changed
from trimaran.spec.files import load_job

GOAL, WINDOW, SHOWN, WARM_UP = 0.01, 20, 50, 50


def started(folder: Path, job: str, precision: str, steps: int, changes: list[str]) -> "subprocess.Popen[bytes]":
    settings = [f"precision={precision}", "data.source=stdlib/tokens", *changes]
    command = [*TRIMARAN, "train", job, "--steps", str(steps), "--metrics", f"{precision}.jsonl"]
    command += [word for setting in settings for word in ("--set", setting)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)


def losses(metrics: Path) -> npt.NDArray[np.float64]:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return np.array([record["loss"] for record in records if "loss" in record])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", default="tiny", help="A job file or a preset.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], help="A field of the job, as for `trimaran train`.")
    asked = parser.parse_args()
    job = str(Path(asked.job).resolve()) if Path(asked.job).exists() else asked.job
    warm_up = WARM_UP * changed(load_job(job), asked.set).batch.size
    changes = [f"recipe.warmup_samples={warm_up}", *asked.set]
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        runs = {kind: started(Path(name), job, kind, asked.steps, changes) for kind in ("bf16", "fp8")}
        for kind, run in runs.items():
            if run.wait():
                raise SystemExit(f"The run in {kind} ended with exit code {run.returncode}.")
        wide, narrow = (losses(Path(name) / f"{kind}.jsonl") for kind in runs)
    rows = []
    for begin in range(0, asked.steps, SHOWN):
        means = [curve[begin : begin + SHOWN].mean() for curve in (wide, narrow)]
        rows.append((f"{begin + 1} to {begin + SHOWN}", *(f"{mean:.4f}" for mean in means), f"{_apart(*means):+.2%}"))
    print_table(f"Mean loss of {asked.job}, nats a byte", ("steps", "bf16", "fp8", "apart"), rows)
    window = np.ones(WINDOW) / WINDOW
    apart = _apart(*(np.convolve(curve, window, mode="valid") for curve in (wide, narrow)))
    worst = int(np.abs(apart).argmax())
    print(
        f"Last losses {wide[-1]:.4f} and {narrow[-1]:.4f}. Means of {WINDOW} steps are furthest apart in steps"
        f" {worst + 1} to {worst + WINDOW}: {apart[worst]:+.2%} (goal: within {GOAL:.0%})."
    )
    reached = bool(np.abs(apart).max() <= GOAL)
    print("Goal reached." if reached else "Goal missed.")
    return 0 if reached else 1


def _apart(wide: npt.NDArray[np.float64], narrow: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How much higher the 8-bit losses are, as a share."""
    return narrow / wide - 1


if __name__ == "__main__":
    sys.exit(main())
