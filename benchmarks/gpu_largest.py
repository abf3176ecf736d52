"""The largest model on one NVIDIA H200, by `trimaran fit`: it trains, with each Adam and full recompute.

    python benchmarks/gpu_largest.py [--optimizers fused-adam adam-8bit adam] [--steps 5]

Prints parameters, tokens per second (the median step after two) and memory, measured against predicted. Goal: every one
trains to its last step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from arguments import require_gpu
from stdlib_training import TRIMARAN
from trimaran.cli.show import print_table
from trimaran.planner.explain import explain
from trimaran.spec import Job
from trimaran.spec.files import load_job, save
from trimaran.spec.settings import apply_settings

CLUSTER = {"preset": "hgx-h200", "nodes": 1, "devices_per_node": 1}
WARM_UP, GIB = 2, 2**30


def largest(optimizer: str, folder: Path) -> dict[str, Any]:
    """The answer of `trimaran fit`."""
    cluster = folder / "one-h200.yaml"
    cluster.write_text(json.dumps(CLUSTER))
    options = ["--on", str(cluster), "--gbs", "1", "--fix", "recompute=full", "--optimizer", optimizer, "--json"]
    ended = subprocess.run([*TRIMARAN, "fit", *options], check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def job_of(optimizer: str, model: dict[str, Any]) -> Job:
    fields = [f"model.{name}={model[name]}" for name in ("name", "layers", "hidden", "heads")]
    fields += [f"model.ffn_hidden={4 * model['hidden']}", "batch.size=1", "layout.micro_batch=1"]
    return apply_settings(load_job("gpt-1b3-h200"), [*fields, "layout.recompute=full", f"optimizer={optimizer}"])


def train(job: Job, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Metrics of its steps; fewer than asked where it failed."""
    save(job, folder / "job.yaml")
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = [*TRIMARAN, "train", str(folder / "job.yaml"), "--steps", str(steps), "--metrics", str(metrics)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return [record for record in map(json.loads, lines) if "loss" in record]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", nargs="+", default=["fused-adam", "adam-8bit", "adam"])
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    require_gpu(parser)
    rows, all_trained = [], True
    with tempfile.TemporaryDirectory() as name:
        for optimizer in options.optimizers:
            fit = largest(optimizer, Path(name))
            model, job = fit["model"], job_of(optimizer, fit["model"])
            print(f"{optimizer}: {model['layers']} x {model['hidden']}", file=sys.stderr, flush=True)
            records = train(job, options.steps, Path(name))
            all_trained &= len(records) == options.steps
            predicted = explain(job)
            memory = predicted.memory_bytes()["first"]
            seconds = [record["seconds"] for record in records[WARM_UP:]]
            row = [optimizer, f"{model['layers']} x {model['hidden']}", f"{fit['parameters'] / 1e9:.2f}B"]
            row += [f"{len(records)} of {options.steps}"]
            row += [f"{job.model.seq_len / statistics.median(seconds):,.0f}" if seconds else "–"]
            row += [f"{job.model.seq_len / predicted.seconds:,.0f}"]
            row += [f"{records[-1]['peak_memory_gib'][0]:.1f}" if records else "–"]
            row += [f"{(memory['total'] - memory['context']) / GIB:.1f}"]
            row += [f"{records[0]['loss']:.3f} to {records[-1]['loss']:.3f}" if records else "–"]
            print(*row, sep=" | ", file=sys.stderr, flush=True)
            rows.append(row)
    header = ["optimizer", "model", "parameters", "steps", "tokens/s", "predicted", "GiB reserved", "predicted", "loss"]
    print_table("The largest model on one H200, full recompute, one sample of 2048 tokens a step", header, rows)
    return 0 if all_trained else 1


if __name__ == "__main__":
    sys.exit(main())
