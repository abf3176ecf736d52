"""What fp8 GEMMs cost in loss: the same training in bf16 and in fp8, on the source of the standard library.

    python benchmarks/fp8_loss.py [--job gpt-1b3-h200] [--steps 300] [--noise] [--set recipe.learning_rate=2e-4 ...]

Prints the mean loss of every 50 steps of both, and the largest difference of the means of any 20 consecutive steps, in
all and after the first 50. Goal: never more than 1 %. The job is `tiny` unless another is named; its data is the bytes
of the library in any case. A job without a warm-up gets one of 50 steps: large models diverge without one.
With --noise two more runs in bf16 show the noise: one with smaller micro batches, which sum in another order, and one
whose initial weights are perturbed as much as fp8 rounds them (perturbed_start.py). All run at once: on a CPU give each
a core, as by OMP_NUM_THREADS=1.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arguments import job_argument
from stdlib_training import TRIMARAN, prepare
from trimaran.cli.show import print_table
from trimaran.spec.files import load_job

GOAL, WINDOW, SHOWN, WARM_UP, LOOK = 0.01, 20, 50, 50, 10.0
PERTURBED = "perturbed start"
Curve = npt.NDArray[np.float64]  # losses, step by step


def start(folder: Path, job: str, name: str, steps: int, changes: list[str]) -> "subprocess.Popen[bytes]":
    trimaran = [sys.executable, str(Path(__file__).with_name("perturbed_start.py"))] if name == PERTURBED else TRIMARAN
    command = [*trimaran, "train", job, "--steps", str(steps), "--metrics", f"{name}.jsonl"]
    command += [word for change in ("data.source=stdlib/tokens", *changes) for word in ("--set", change)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)


def losses(metrics: Path) -> Curve:
    """As far as it got."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return np.array([record["loss"] for record in records if "loss" in record])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="tiny", help="A job file or a preset.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], help="A field of the job, as for `trimaran train`.")
    parser.add_argument("--noise", action="store_true", help="Two more runs in bf16, as controls.")
    parser.add_argument("--keep", type=Path, help="A file for the losses, as JSON; also of a run that was stopped.")
    asked = parser.parse_args()
    if asked.steps < WINDOW:
        parser.error(f"{asked.steps} steps are fewer than the {WINDOW} of a mean")
    job = str(Path(asked.job).resolve()) if Path(asked.job).exists() else asked.job
    read = job_argument(parser, job, asked.set)
    warm_up = load_job(job).recipe.warmup_samples or WARM_UP * read.batch.size
    changes = [f"recipe.warmup_samples={warm_up}", *asked.set]
    kinds = {"bf16": ["precision=bf16"], "fp8": ["precision=fp8"]}
    if asked.noise:
        kinds["bf16 again"] = ["precision=bf16", f"layout.micro_batch={read.layout.micro_batch // 2}"]
        kinds[PERTURBED] = ["precision=bf16"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a timeout's; so that the runs end too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        runs = {kind: start(folder, job, kind, asked.steps, changes + more) for kind, more in kinds.items()}
        try:
            while None in (codes := [run.poll() for run in runs.values()]) and not any(codes):
                time.sleep(LOOK)
                so_far = {kind: losses(folder / f"{kind}.jsonl") for kind in runs}
                print(
                    *(f"{kind} {len(found)} {found[-1:]}" for kind, found in so_far.items()), sep="; ", file=sys.stderr
                )
        finally:  # also after Ctrl-C
            for run in runs.values():
                run.terminate()
                run.wait()
            curves = {kind: losses(folder / f"{kind}.jsonl") for kind in runs}
            if asked.keep:
                asked.keep.write_text(json.dumps({kind: curve.tolist() for kind, curve in curves.items()}))
    for kind, code in zip(runs, codes, strict=True):
        if code:
            raise SystemExit(f"The run in {kind} ended with exit code {code}.")
    rows = []
    for begin in range(0, asked.steps, SHOWN):
        means = [curve[begin : begin + SHOWN].mean() for curve in curves.values()]
        differences = [f"{_difference(means[0], mean):+.2%}" for mean in means[1:]]
        rows.append((f"{begin + 1} to {begin + SHOWN}", *(f"{mean:.4f}" for mean in means), *differences))
    header = ("steps", *curves, *(f"{kind} difference" for kind in list(curves)[1:]))
    print_table(f"Mean loss of {asked.job}, nats per byte", header, rows)
    worst = {kind: largest_difference(kind, curves["bf16"], curve) for kind, curve in list(curves.items())[1:]}
    reached = abs(worst["fp8"]) <= GOAL
    print("Goal reached." if reached else "Goal missed.")
    return 0 if reached else 1


def largest_difference(kind: str, bf16: Curve, curve: Curve) -> float:
    """Of the means of so many consecutive steps."""
    window = np.ones(WINDOW) / WINDOW
    differences = _difference(*(np.convolve(each, window, mode="valid") for each in (bf16, curve)))
    at = int(np.abs(differences).argmax())
    later = (
        f"; after the first {WARM_UP} {max(differences[WARM_UP:], key=abs):+.2%}" if len(differences) > WARM_UP else ""
    )
    print(
        f"{kind}: last loss {curve[-1]:.4f}, bf16 {bf16[-1]:.4f}. Means of {WINDOW} steps differ most in steps"
        f" {at + 1} to {at + WINDOW}: {differences[at]:+.2%} (goal: within {GOAL:.0%}){later}."
    )
    return float(differences[at])


def _difference(bf16: Any, other: Any) -> Any:
    """Relative: how much higher the other's losses are."""
    return other / bf16 - 1


if __name__ == "__main__":
    sys.exit(main())
