"""Does the loop close? Plan, run, learn, plan again on this machine: the second plan must know more than the first.

    python benchmarks/loop.py [--ranks 8] [--short]

`probe` writes the cluster file, `plan` ranks layouts of a small GPT, `sweep` measures a dozen of them, `learn` fits the
constants to those, and other layouts, which nobody has run before, tell how far the predictions of both plans are off.
Goals: a lower error on layouts not run before; the second plan's pick within 10 % of the best that was measured.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from trimaran.cli.show import print_table

MODEL = {"name": "gpt-small", "layers": 8, "hidden": 256, "heads": 8, "vocab": 2048, "seq_len": 128}
BATCH, SHORT_BATCH, WITHIN = 16, 8, 1.10
FIXED = ("schedule=1f1b", "recompute=none", "sequence_parallel=false", "split=even", "zero=0,1", "mbs=1,2,4")
Layouts = list[dict[str, Any]]


def trimaran(*words: str, ledger: str = "trimaran.sqlite", quiet: bool = False) -> Any:
    """The command as a user runs it; what --json says."""
    if not quiet:
        print(f"$ trimaran {' '.join(words)}", flush=True)
    environment = {**os.environ, "TRIMARAN_LEDGER": ledger}
    ran = subprocess.run(
        [sys.executable, "-m", "trimaran.cli.main", *words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if ran.returncode:
        sys.exit(f"trimaran {words[0]} ended with {ran.returncode}")
    return json.loads(ran.stdout)


def planned(cluster: str, ranks: int, batch: int) -> Layouts:
    """Every layout of the plan that uses all ranks, the best first."""
    fixes = [word for fix in FIXED for word in ("--fix", fix)]
    options = ["--gbs", str(batch), "--precision", "fp32", "--top", "200", "--variants", *fixes]
    found = trimaran("plan", "model.yaml", "--on", cluster, *options)["layouts"]
    fields = ("dp", "tp", "pp", "micro_batch", "zero")
    return [
        {**{f"layout.{field}": layout[field] for field in fields}, "seconds": layout["seconds"]}
        for layout in found
        if layout["devices"] == ranks and (layout["dp"] > 1 or layout["zero"] == 0)
    ]


def key(layout: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for field, value in sorted(layout.items()) if field.startswith("layout."))


def swept(name: str, layouts: Layouts, ledger: str, iterations: int, batch: int) -> dict[tuple[Any, ...], float]:
    """Measured seconds of these layouts."""
    alternatives = [{f: v for f, v in layout.items() if f != "seconds"} for layout in layouts]
    base = {
        "model": MODEL,
        "cluster": "probed.yaml",
        "layout": {f.split(".")[1]: v for f, v in alternatives[0].items()},
        "batch": {"size": batch},
        "precision": "fp32",
    }
    measuring = {"iterations": iterations, "least": min(5, iterations), "tolerance": 0.05, "minutes": 5}
    Path(f"{name}.yaml").write_text(
        yaml.safe_dump({"base": base, "alternatives": alternatives, "measuring": measuring})
    )
    told = trimaran("sweep", f"{name}.yaml", ledger=ledger)
    found = {}
    for trial in told["trials"]:
        job = yaml.safe_load((Path(told["folder"]) / "trials" / trial["id"][-4:] / "job.yaml").read_text())
        print(f"  {trial['label']}: {trial['status']} {trial['seconds'] or trial['reason']}")
        if trial["seconds"]:
            layout = {f: job["layout"][f.split(".")[1]] for f in alternatives[0]}
            found[key(layout)] = trial["seconds"]
    return found


def error(predicted: Layouts, measured: dict[tuple[Any, ...], float]) -> tuple[float, float]:
    """Mean and worst of |log(predicted / measured)|, as a factor less one."""
    off = [abs(math.log(layout["seconds"] / measured[key(layout)])) for layout in predicted if key(layout) in measured]
    return math.expm1(statistics.mean(off)), math.expm1(max(off))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--short", action="store_true", help="For the demo: fewer layouts and iterations.")
    parser.add_argument("--folder", type=Path, help="Where everything is kept; else nowhere.")
    asked = parser.parse_args()
    teaching, unseen, iterations, batch = (4, 2, 4, SHORT_BATCH) if asked.short else (12, 6, 8, BATCH)
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        Path("model.yaml").write_text(yaml.safe_dump(MODEL))
        trimaran("probe", "--ranks", str(asked.ranks), *(["--quick"] if asked.short else []), "-o", "probed.yaml")
        first = planned("probed.yaml", asked.ranks, batch)
        # Spread over the plan: the best, and every so many of the others; what lies between them stays unseen.
        some = first[:: max(1, len(first) // (teaching + unseen))][: teaching + unseen]
        kept = some[1 :: 1 + teaching // unseen][:unseen]
        known = [each for each in some if each not in kept]
        taught = swept("taught", known, "taught.sqlite", iterations, batch)
        trimaran("learn", "--on", "probed.yaml", "-o", "learned.yaml", ledger="taught.sqlite")
        second = planned("learned.yaml", asked.ranks, batch)
        pick = [second[0]] if key(second[0]) not in taught and second[0] not in kept else []
        new = swept("unseen", [*kept, *pick], "unseen.sqlite", iterations, batch)
    measured = {**taught, **new}
    best, picked = min(measured.values()), measured[key(second[0])]
    rows = []
    for name, plan in (("probed", first), ("learned", second)):
        by = {key(layout): layout for layout in plan}
        cells = [error([by[k] for k in part if k in by], part) for part in (taught, new)]
        rows.append((name, *(f"{mean:.0%} ({worst:.0%})" for mean, worst in cells)))
    print_table(
        "Error of the prediction, mean (worst)",
        ("cluster file", f"{len(taught)} layouts learnt from", f"{len(new)} layouts not run before"),
        rows,
    )
    print(f"The second plan's pick took {picked:.3f} s, the best of {len(measured)} measured {best:.3f} s.")
    errors = [error([layout for layout in plan if key(layout) in new], new)[0] for plan in (first, second)]
    good = errors[1] < errors[0] and picked <= WITHIN * best
    print("Goals reached." if good else "Goals missed.")
    return 0 if good or asked.short else 1


if __name__ == "__main__":
    sys.exit(main())
