"""Memory of our trainer on one NVIDIA GPU: predicted against measured, and the largest micro batch that fits.

    python benchmarks/gpu_memory.py                                      # gpt-1b3-h200
    python benchmarks/gpu_memory.py --micro-batches 4 8 --set precision=fp8

Measured is the allocator's peak of reserved memory over three steps, without the device's context; so the prediction is
printed without the context. Goals: within 5 %; the largest micro batch predicted exactly, which is tried: it trains,
and one more runs out of memory.
"""

import argparse
import bisect
import json
import sys

import torch

from arguments import job_argument, require_gpu
from gpu_steps import peak_memory
from trimaran.cli.show import print_table
from trimaran.planner.explain import explain
from trimaran.spec import Job
from trimaran.spec.settings import apply_settings

GIB, TOLERANCE, MOST = 2**30, 0.05, 512
RECOMPUTE = ("none", "selective", "full")


def variant(job: Job, micro_batch: int, recompute: str) -> Job:
    return apply_settings(
        job, [f"layout.micro_batch={micro_batch}", f"batch.size={micro_batch}", f"layout.recompute={recompute}"]
    )


def predicted_gib(job: Job) -> float:
    parts = explain(job).memory_bytes()["first"]
    return (parts["total"] - parts["context"]) / GIB


def measured_gib(job: Job) -> tuple[float, float] | None:
    """Reserved and allocated at the peak; None where memory ran out."""
    found = peak_memory(job)
    return found and (found.reserved / GIB, found.allocated / GIB)


def largest(job: Job, recompute: str) -> int:
    """The largest micro batch that is predicted to fit."""
    return bisect.bisect_left(range(1, MOST + 1), True, key=lambda m: not explain(variant(job, m, recompute)).fits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default="gpt-1b3-h200")
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--largest", nargs="*", default=["none", "full"], help="The recompute modes to find it for.")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="FIELD=VALUE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    job = job_argument(parser, options.job, options.settings)
    require_gpu(parser)
    rows = []
    for recompute in RECOMPUTE:
        for micro_batch in options.micro_batches:
            asked = variant(job, micro_batch, recompute)
            print(f"micro batch {micro_batch}, recompute {recompute}", file=sys.stderr, flush=True)
            expected, found = predicted_gib(asked), measured_gib(asked)
            rows.append((recompute, micro_batch, expected, *(found or (None, None))))
            print(f"predicted {expected:.2f}, found {found}", file=sys.stderr, flush=True)
    ends = []
    for recompute in options.largest:
        expected_most = largest(job, recompute)
        print(f"largest micro batch, recompute {recompute}: {expected_most}?", file=sys.stderr, flush=True)
        trains = measured_gib(variant(job, expected_most, recompute)) is not None
        more = measured_gib(variant(job, expected_most + 1, recompute)) is not None
        ends.append((recompute, expected_most, trains, more))
    errors = [expected / reserved - 1 for *_, expected, reserved, _ in rows if reserved]
    if options.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows, "largest": ends}, indent=1))
    else:
        cells = [
            (
                r,
                str(m),
                f"{e:.2f}",
                *((f"{s:.2f}", f"{a:.2f}", f"{e / s - 1:+.1%}") if s else ("out of memory", "", "")),
            )
            for r, m, e, s, a in rows
        ]
        header = ("recompute", "micro batch", "predicted GiB", "reserved", "allocated", "error")
        print_table(f"{options.job} on {torch.cuda.get_device_name()}", header, cells)
        for recompute, most, trains, more in ends:
            it, one_more = ("trains" if does else "runs out of memory" for does in (trains, more))
            print(f"recompute {recompute}: largest micro batch predicted {most}; it {it}, {most + 1} {one_more}.")
    good = len(errors) == len(rows) and max(map(abs, errors), default=0.0) <= TOLERANCE
    return 0 if good and all(trains and not more for *_, trains, more in ends) else 1


if __name__ == "__main__":
    sys.exit(main())
