"""What the pages of a GPU's memory lose: how much a step of our trainer needs beside its tensors.

    python benchmarks/gpu_pages.py                                       # gpt-1b3-h200
    python benchmarks/gpu_pages.py --set layout.recompute=full
    PYTORCH_ALLOC_CONF=expandable_segments:True python benchmarks/gpu_pages.py   # PyTorch's own pages of 20 MiB

The trainer is run once for its peak of allocated memory. Then one tensor takes the rest of the card, all but that peak
and a few MiB, and it is trained again: the fewest MiB with which it does, by bisection. Goal: no more than the cost
model takes for lost (`PAGES_BYTES` of trimaran.cost.memory).
"""

import argparse
import bisect
import sys

import torch

from asking import job_asked, need_gpu
from gpu_steps import GPU, forget, ours
from trimaran.cost.memory import PAGES_BYTES
from trimaran.spec import Job

MIB, STEPS, EVERY = 2**20, 3, 10


def trained(job: Job) -> int | None:
    """Its peak in bytes; None where memory ran out."""
    torch.cuda.reset_peak_memory_stats()
    try:
        step = ours(job)
        for number in range(STEPS):
            step(number)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_allocated()


def trains_within(job: Job, spare: int) -> bool:
    """Where all of the card that is not in use is taken but so many bytes."""
    forget()
    free, _ = torch.cuda.mem_get_info()
    rest = max(0, free + torch.cuda.memory_reserved() - spare)
    taken = torch.empty(rest, dtype=torch.uint8, device=GPU)
    does = trained(job) is not None
    del taken
    return does


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default="gpt-1b3-h200")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="FIELD=VALUE")
    parser.add_argument("--most", type=int, default=260, metavar="MIB", help="Where to stop looking.")
    options = parser.parse_args()
    job = job_asked(parser, options.job, options.settings)
    need_gpu(parser)
    peak = trained(job)
    if peak is None:
        parser.error("this Job does not fit into this GPU; a smaller layout.micro_batch would.")

    def does(mib: int) -> bool:
        found = trains_within(job, peak + mib * MIB)
        print(
            f"{mib} MiB beside {peak / 2**30:.2f} GiB: {'trains' if found else 'runs out'}", file=sys.stderr, flush=True
        )
        return found

    tried = range(EVERY, options.most + 1, EVERY)
    at = bisect.bisect_left(tried, True, key=does)
    if at == len(tried):
        print(f"{options.job}: more than {options.most} MiB are needed beside the tensors")
        return 1
    print(f"{options.job}: {tried[at]} MiB are enough beside the tensors (goal at most {PAGES_BYTES // MIB})")
    return 0 if tried[at] * MIB <= PAGES_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
