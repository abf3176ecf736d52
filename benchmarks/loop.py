"""Does the loop close? Plan, run, learn and plan again on this machine: the second plan must predict better.

    python benchmarks/loop.py [--ranks 8] [--folder FOLDER]
    python benchmarks/loop.py --demo --ranks 4 --folder demo/loop

`probe` writes the cluster file, `plan` ranks layouts of a small GPT, `sweep` measures a dozen of them, `learn` fits the
constants to those, and both plans are compared on layouts that were not measured before.
Goals: a lower error on these layouts; the second plan's pick within 10 % of the best that was measured.
--demo is a short loop without goals: it says what was found and where to look, also in FOLDER/summary.txt.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trimaran.cli.show import print_table

MODEL = {"name": "gpt-small", "layers": 8, "hidden": 256, "heads": 8, "vocab": 2048, "seq_len": 128}
GOAL_SLOWER = 1.10
FIXED = ("schedule=1f1b", "recompute=none", "sequence_parallel=false", "split=even", "zero=0,1", "mbs=1,2,4")
FIELDS = ("dp", "tp", "pp", "micro_batch", "zero")
Layout = tuple[int, ...]  # the values of FIELDS
Seconds = dict[Layout, float]  # predicted: fastest first


@dataclass(frozen=True)
class Size:
    """How much is measured. Layouts of `training` are learned from, layouts of `test` are held out."""

    training: int
    test: int
    iterations: int
    batch: int


BENCHMARK, DEMO = Size(12, 6, 8, 16), Size(4, 2, 4, 8)


@dataclass(frozen=True)
class Loop:
    """Predictions of the plan before and after learning, and what the layouts learned from and held out really took."""

    probed: Seconds
    learned: Seconds
    training: Seconds
    test: Seconds

    @property
    def measured(self) -> Seconds:
        return {**self.training, **self.test}

    @property
    def best(self) -> Layout:
        return min(self.measured, key=self.measured.__getitem__)

    @property
    def pick_slower(self) -> float:
        """Seconds of the second plan's pick over those of the best layout; infinite if its trial failed."""
        return self.measured.get(next(iter(self.learned)), math.inf) / self.measured[self.best]


def trimaran(*words: str, ledger: str = "trimaran.sqlite") -> Any:
    """The command as a user runs it; the object that --json prints."""
    print(f"$ trimaran {' '.join(words)}", flush=True)
    ran = subprocess.run(
        [sys.executable, "-m", "trimaran.cli.main", *words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRIMARAN_LEDGER": ledger},
    )
    if ran.returncode:
        sys.exit(f"trimaran {words[0]} ended with exit code {ran.returncode}.")
    return json.loads(ran.stdout)


def plan(cluster: str, ranks: int, batch: int) -> Seconds:
    """Every layout of the plan that uses all ranks, the fastest first."""
    fixes = [word for fix in FIXED for word in ("--fix", fix)]
    options = ["--gbs", str(batch), "--precision", "fp32", "--top", "200", "--variants", *fixes]
    rows = trimaran("plan", "model.yaml", "--on", cluster, *options)["layouts"]
    return {
        tuple(row[field] for field in FIELDS): row["seconds"]
        for row in rows
        if row["devices"] == ranks and (row["dp"] > 1 or row["zero"] == 0)
    }


def sweep(name: str, layouts: list[Layout], size: Size) -> Seconds:
    """Measured seconds of these layouts; one whose trial failed is missing."""
    base = {
        "model": MODEL,
        "cluster": "probed.yaml",
        "layout": dict(zip(FIELDS, layouts[0], strict=True)),
        "batch": {"size": size.batch},
        "precision": "fp32",
    }
    alternatives = [
        {f"layout.{field}": value for field, value in zip(FIELDS, layout, strict=True)} for layout in layouts
    ]
    measuring = {"iterations": size.iterations, "least": min(5, size.iterations), "tolerance": 0.05, "minutes": 5}
    text = yaml.safe_dump({"base": base, "alternatives": alternatives, "measuring": measuring})
    Path(f"{name}.yaml").write_text(text)
    swept = trimaran("sweep", f"{name}.yaml", ledger=f"{name}.sqlite")
    measured = {}
    for trial in swept["trials"]:
        job = yaml.safe_load((Path(swept["folder"]) / "trials" / trial["id"][-4:] / "job.yaml").read_text())
        if trial["seconds"]:
            measured[tuple(job["layout"][field] for field in FIELDS)] = trial["seconds"]
    if not measured:
        sys.exit(f"No trial of the sweep {name} was measured; see {swept['folder']}.")
    return measured


def close_loop(ranks: int, size: Size, quick: bool) -> Loop:
    Path("model.yaml").write_text(yaml.safe_dump(MODEL))
    trimaran("probe", "--ranks", str(ranks), *(["--quick"] if quick else []), "-o", "probed.yaml")
    probed = plan("probed.yaml", ranks, size.batch)
    # Evenly spaced through the ranking, the best among them; every few of these are held out.
    total = size.training + size.test
    chosen = list(probed)[:: max(1, len(probed) // total)][:total]
    held_out = chosen[1 :: 1 + size.training // size.test][: size.test]
    training = sweep("training", [layout for layout in chosen if layout not in held_out], size)
    trimaran("learn", "--on", "probed.yaml", "-o", "learned.yaml", ledger="training.sqlite")
    learned = plan("learned.yaml", ranks, size.batch)
    pick = next(iter(learned))
    test = sweep("test", [*held_out, *([pick] if pick not in training and pick not in held_out else [])], size)
    return Loop(probed, learned, training, test)


def errors(predicted: Seconds, measured: Seconds) -> tuple[float, float]:
    """Mean and worst of |log(predicted / measured)|, as a factor less one."""
    logs = [abs(math.log(predicted[layout] / measured[layout])) for layout in measured if layout in predicted]
    return (math.expm1(statistics.mean(logs)), math.expm1(max(logs))) if logs else (math.nan, math.nan)


def print_errors(loop: Loop) -> None:
    print_table(
        "Prediction error, mean (worst)",
        ("cluster file", f"{len(loop.training)} layouts learned from", f"{len(loop.test)} layouts held out"),
        [
            (name, *("{:.0%} ({:.0%})".format(*errors(predicted, part)) for part in (loop.training, loop.test)))
            for name, predicted in (("probed", loop.probed), ("learned", loop.learned))
        ],
    )


def summary(loop: Loop, folder: Path) -> str:
    dp, tp, pp, micro_batch, zero = loop.best
    before, after = (errors(predicted, loop.test)[0] for predicted in (loop.probed, loop.learned))
    lines = [
        f"Fastest of {len(loop.measured)} layouts measured here: dp {dp}, tp {tp}, pp {pp}, micro batch {micro_batch},"
        f" ZeRO {zero}: {loop.measured[loop.best]:.3f} s an iteration.",
        f"Prediction error on {len(loop.test)} layouts held out: {before:.0%} with the probe alone, {after:.0%} after"
        f" learning from {len(loop.training)} trials.",
    ]
    if after >= before:
        lines.append("So few trials on a busy machine may teach little; python benchmarks/loop.py runs a dozen.")
    return "\n".join([*lines, f"Cluster file with the learned constants: {folder / 'learned.yaml'}", ""])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--demo", action="store_true", help="Fewer layouts and iterations, and no goals.")
    parser.add_argument("--folder", type=Path, help="Where files are kept; a temporary folder unless given.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        loop = close_loop(options.ranks, DEMO if options.demo else BENCHMARK, quick=options.demo)
        print_errors(loop)
        if options.demo:
            text = summary(loop, folder)
            Path("summary.txt").write_text(text)
            print(text, end="")
            return 0
    print(f"The second plan's pick takes {loop.pick_slower:.2f} times the seconds of the best (goal {GOAL_SLOWER}).")
    before, after = (errors(predicted, loop.test)[0] for predicted in (loop.probed, loop.learned))
    reached = after < before and loop.pick_slower <= GOAL_SLOWER
    print("Goals reached." if reached else "Goals missed.")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
