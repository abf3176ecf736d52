"""Fragmentation of a GPU's memory in pages: how much a step of our trainer needs beyond its tensors.

    python benchmarks/gpu_pages.py                                       # gpt-1b3-h200
    python benchmarks/gpu_pages.py --set layout.recompute=full
    PYTORCH_ALLOC_CONF=expandable_segments:True python benchmarks/gpu_pages.py   # PyTorch's own pages of 20 MiB

The trainer is run once for its peak of allocated memory. Then one tensor takes the rest of the card, except that peak
and a few MiB, and it trains again: the fewest MiB with which it does, by bisection. Goal: no more than the cost model
assumes (`PAGES_BYTES` of trimaran.cost.memory).
"""

import argparse
import bisect
import sys

import torch

from arguments import job_argument, require_gpu
from gpu_steps import GPU, free_memory, peak_memory
from trimaran.cost.memory import PAGES_BYTES
from trimaran.spec import Job

MIB = 2**20
TRIED_MIB = range(10, 261, 10)


def trains_within(job: Job, spare: int) -> bool:
    """With only so many bytes of the card free."""
    free_memory()
    free, _ = torch.cuda.mem_get_info()
    rest = max(0, free + torch.cuda.memory_reserved() - spare)
    taken = torch.empty(rest, dtype=torch.uint8, device=GPU)
    does = peak_memory(job) is not None
    del taken
    return does


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default="gpt-1b3-h200")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="FIELD=VALUE")
    options = parser.parse_args()
    job = job_argument(parser, options.job, options.settings)
    require_gpu(parser)
    peak = peak_memory(job)
    if peak is None:
        parser.error("this Job does not fit into this GPU; a smaller layout.micro_batch would.")

    def does(mib: int) -> bool:
        found = trains_within(job, peak.allocated + mib * MIB)
        beyond = f"{mib} MiB beyond {peak.allocated / 2**30:.2f} GiB"
        print(f"{beyond}: {'trains' if found else 'runs out'}", file=sys.stderr, flush=True)
        return found

    at = bisect.bisect_left(TRIED_MIB, True, key=does)
    if at == len(TRIED_MIB):
        print(f"{options.job}: more than {TRIED_MIB[-1]} MiB are needed beyond the tensors")
        return 1
    goal = PAGES_BYTES[job.optimizer] // MIB
    print(f"{options.job}: {TRIED_MIB[at]} MiB are enough beyond the tensors (goal at most {goal})")
    return 0 if TRIED_MIB[at] <= goal else 1


if __name__ == "__main__":
    sys.exit(main())
