"""Seconds and TFLOP/s of a training step on one NVIDIA GPU, and where they go by kind of operation.

    python benchmarks/gpu_train.py                                       # gpt-1b3-h200
    python benchmarks/gpu_train.py --set layout.micro_batch=8 --set batch.size=8
    python benchmarks/gpu_train.py --fp8 --beside others                 # others/nanoGPT, others/torchtitan: checkouts

Trainers take turns, a few steps each; the median step of each is reported. Four of them do not fit on a card at once,
so every other one has a session with those of ours that a goal compares it with, and a ratio is that of one session.
TFLOP/s are by the formula `bigscience-exact`, 72 B s l h^2 (1 + s/6h + V/16lh), times the ratio of the models' FLOPs
where a trainer's model is not quite the Job's (torchtitan's).
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

import other_trainers
from arguments import job_argument, require_gpu
from gpu_steps import GPU, Step, ours, timed
from trimaran.cli.show import print_table
from trimaran.cost.flops import FORMULAS, TrainingStep
from trimaran.data.source import source_of
from trimaran.engine.loop.batches import batch
from trimaran.spec import Job, Model

ROUNDS, STEPS, WARM_UP, PROFILED, GOAL = 3, 5, 3, 2, 590.0
GOALS = {("trimaran", "torchtitan"): 1.10, ("trimaran", "nanoGPT"): 1.06, ("trimaran fp8", "torchtitan"): 1.30}


def beside(train: other_trainers.Train, job: Job) -> Step:
    """Somebody else's trainer, on the same batches."""
    source, size = source_of(job), job.batch.size

    def step(number: int) -> None:
        given = batch(job, source, number * size, size, 0, GPU)
        train(given["tokens"], given["targets"])

    return step


def trainers(job: Job, fp8: bool, folder: Path | None) -> dict[str, tuple[Callable[[], Step], Model]]:
    """By name: how its step is made, and the model it trains."""
    found: dict[str, tuple[Callable[[], Step], Model]] = {"trimaran": (lambda: ours(job), job.model)}
    if fp8:
        in_fp8 = job.replace(precision="fp8")
        found["trimaran fp8"] = (lambda: ours(in_fp8), job.model)
    others = {"nanoGPT": (other_trainers.nanogpt, job.model)}
    others["torchtitan"] = (other_trainers.torchtitan, other_trainers.shape(job.model))
    for name, (build, model) in others.items():
        if folder is not None and (folder / name).is_dir():
            found[name] = (lambda build=build, at=folder / name: beside(build(job, at, GPU), job), model)
    return found


# By a part of the kernel's name; the first match counts.
KINDS = {
    "attention": ("sdpa", "flash", "cudnn", "fmha"),
    "GEMMs": ("nvjet", "gemm", "cutlass"),
    "optimizer": ("div_mul_sqrt", "adam", "multi_tensor"),
    "fp8 quantization": ("linalg_vector_norm", "scaled_mm", "_transpose_kernel"),
    "loss": ("amax", "scatter_select", "bitwise_and"),
    "GELU": ("gelu", "sigmoid"),
    "norms and residual adds": ("_norm", "fused_add"),
    "bias gradients": ("red_fused_sum", "reduce_kernel"),
}


def kind(kernel: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in kernel for part in parts)), "other")


def profiled(step: Step) -> Counter[str]:
    """Milliseconds of a step by kernel."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as record:
        for number in range(PROFILED):
            step(number)
        torch.cuda.synchronize()
    found: Counter[str] = Counter()
    for event in record.key_averages():
        found[event.key] += event.self_device_time_total / 1e3 / PROFILED
    return found


def by_kind(kernels: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for kernel, ms in kernels.items():
        found[kind(kernel)] += ms
    return found


class Timing(NamedTuple):
    """Of one trainer in one session."""

    seconds: list[float]
    first_seconds: float
    kernels: Counter[str]
    peak_gib: float


def session(job: Job, fp8: bool, folder: Path | None, names: Sequence[str]) -> dict[str, Timing]:
    """These trainers in turn, in a process of their own."""
    built = trainers(job, fp8, folder)
    steps, first_seconds, peaks = {}, {}, {}
    for name in names:
        started = time.perf_counter()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        steps[name] = built[name][0]()
        for number in range(WARM_UP):
            steps[name](number)
            torch.cuda.synchronize()
            first_seconds.setdefault(name, time.perf_counter() - started)
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
        torch.cuda.empty_cache()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS):
        for name, step in steps.items():
            torch.cuda.empty_cache()  # what the previous trainer cached
            seconds[name] += timed(step, WARM_UP + turn * STEPS, STEPS)[1:]
            median = statistics.median(seconds[name])
            print(f"{name}: round {turn + 1} of {ROUNDS}, {median:.4f} s", file=sys.stderr, flush=True)
    return {name: Timing(seconds[name], first_seconds[name], profiled(steps[name]), peaks[name]) for name in steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default="gpt-1b3-h200")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="FIELD=VALUE")
    parser.add_argument("--fp8", action="store_true", help="Ours in fp8 too.")
    parser.add_argument("--beside", type=Path, help="A folder with checkouts of nanoGPT and torchtitan 0.2.2.")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="The longest of each, by name.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    job = job_argument(parser, options.job, options.settings)
    require_gpu(parser)
    chosen = trainers(job, options.fp8, options.beside)
    flops = {name: flops_of(job, model) for name, (_, model) in chosen.items()}
    of_ours = [name for name in chosen if name.startswith("trimaran")]
    others = [name for name in chosen if name not in of_ours]
    sessions = []
    for names in [[*(one for one in of_ours if (one, other) in GOALS), other] for other in others] or [of_ours]:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:  # which frees all memory when it ends
            sessions.append(process.submit(session, job, options.fp8, options.beside, names).result())

    found = {name: each for one in reversed(sessions) for name, each in one.items()}
    seconds = {name: [s for one in sessions if name in one for s in one[name].seconds] for name in chosen}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    if options.json:
        summary = {
            name: {
                "seconds": s,
                "tflops": flops[name] / s / 1e12,
                "first_seconds": found[name].first_seconds,
                "peak_gib": found[name].peak_gib,
                "ms": by_kind(found[name].kernels),
                "kernels": dict(found[name].kernels.most_common(options.kernels)),
            }
            for name, s in medians.items()
        }
        print(json.dumps({"device": torch.cuda.get_device_name(), **summary}, indent=1))
    else:
        rows = [
            [
                name,
                *(f"{value * 1e3:.1f}" for value in (s, min(seconds[name]), max(seconds[name]))),
                f"{flops[name] / s / 1e12:.1f}",
                f"{found[name].peak_gib:.1f}",
                f"{found[name].first_seconds:.1f}",
            ]
            for name, s in medians.items()
        ]
        columns = ["trainer", "ms a step", "shortest", "longest", "TFLOP/s", "GiB", "s to the first step"]
        print_table(f"{options.job} on {torch.cuda.get_device_name()}", columns, rows)
        for name, each in found.items():
            print_kernels(name, each.kernels, options.kernels)
    reached = [meets("trimaran", flops["trimaran"] / medians["trimaran"] / 1e12, GOAL)]
    for (one, other), goal in GOALS.items():
        for together in sessions:
            if one in together and other in together:
                ours, theirs = (statistics.median(together[name].seconds) for name in (one, other))
                reached.append(meets(f"{one} / {other}", flops[one] / ours * theirs / flops[other], goal))
    return 0 if all(reached) else 1


def print_kernels(name: str, kernels: Counter[str], most: int) -> None:
    for what, milliseconds in (
        ("kind of operation", by_kind(kernels)),
        ("kernel", Counter(dict(kernels.most_common(most)))),
    ):
        whole = sum(kernels.values())
        rows = [[each[:90], f"{ms:.1f}", f"{ms / whole:.1%}"] for each, ms in milliseconds.most_common()]
        if rows:
            print_table(f"{name}: a step by {what}", [what, "ms", "share"], rows)


def flops_of(job: Job, model: Model) -> float:
    steps = [TrainingStep(each, job.batch.size, 1, job.layout.recompute) for each in (job.model, model)]
    ours, theirs = (float(FORMULAS["model"](step)) for step in steps)
    return float(FORMULAS["bigscience-exact"](steps[0])) * theirs / ours


def meets(what: str, value: float, goal: float) -> bool:
    print(f"{what}: {value:.4g} (goal {goal:g})", file=sys.stderr)
    return value >= goal


if __name__ == "__main__":
    sys.exit(main())
