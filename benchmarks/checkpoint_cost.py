"""What checkpoints cost: python benchmarks/checkpoint_cost.py [JOB] [--set FIELD=VALUE …] [--folder FOLDER]

One process steps as usual, saves in the background and steps on. The cost of a save is the time by which it delays
training: copying to the host, and steps that are slower while it is written. Goal: under 2 % with a checkpoint every
few minutes. Beside it: the same save without the background, and what digests add to writing and reading.
JOB is gpt-1b3-h200 on a GPU; on a CPU `tiny` with twenty million parameters, where writing uses the same cores.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from arguments import job_argument
from trimaran.data.source import source_of
from trimaran.engine.checkpoint.checkpointer import Checkpointer
from trimaran.engine.checkpoint.digests import SUMS
from trimaran.engine.checkpoint.folder import TrainState, newest_checkpoint
from trimaran.engine.loop.batches import batch
from trimaran.engine.parallel.world import World, select_device
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job

MINUTES = 3.0  # between two checkpoints
GOAL = 0.02
CPU_MODEL = ("model.hidden=512", "model.layers=6", "model.heads=8")


class Run:
    def __init__(self, job: Job, device: torch.device) -> None:
        self.trainer, self.source = Trainer(job, World(job.layout, device)), source_of(job)
        self.job, self.device, self.done = job, device, 0

    def step(self) -> float:
        """Seconds of one, the device's work included."""
        begun, size = time.perf_counter(), self.job.batch.size
        self.trainer.step(batch(self.job, self.source, self.done * size, size, 0, self.device)).totals()
        self.synchronize()
        self.done += 1
        return time.perf_counter() - begun

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def save(self, checkpointer: Checkpointer) -> float:
        """Seconds that training waits for it."""
        begun = time.perf_counter()
        checkpointer.save(TrainState(self.done, self.done * self.job.batch.size))
        return time.perf_counter() - begun


def background_cost(run: Run, checkpointer: Checkpointer, usual: float) -> tuple[float, float, float]:
    """Seconds that a save waits, by which it delays the steps meanwhile, and until it is complete."""
    begun = time.perf_counter()
    waited, steps = run.save(checkpointer), [run.step()]
    while checkpointer.pending is not None and not checkpointer.pending.done():
        steps.append(run.step())
    checkpointer.finish()
    return waited, sum(steps) - usual * len(steps), time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", help="gpt-1b3-h200 on a GPU, tiny with a larger model on a CPU")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="change a field of the job")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one otherwise")
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="without a save, for the usual time of a step")
    options = parser.parse_args()
    device = select_device(0, cpu=False)
    defaults = () if options.job or device.type == "cuda" else CPU_MODEL
    name = options.job or ("gpt-1b3-h200" if device.type == "cuda" else "tiny")
    root = Path(tempfile.mkdtemp(dir=options.folder))
    settings = [*defaults, *options.settings, "saving.keep=1", f"saving.folder={root}", "saving.asynchronous=true"]
    job = job_argument(parser, name, settings)
    try:
        measure(Run(job, device), root, options.saves, options.steps)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure(run: Run, folder: Path, saves: int, steps: int) -> None:
    for _ in range(3):
        run.step()
    usual = median(run.step() for _ in range(steps))
    background = Checkpointer(run.trainer)
    first = background_cost(run, background, usual)
    path = newest_checkpoint(folder)
    assert path is not None
    size = sum(file.stat().st_size for file in path.iterdir())
    tell(f"{run.job.name}: a step {1e3 * usual:.1f} ms, a checkpoint {size / 1e9:.2f} GB, medians of {saves}")
    tell(f"the first one, which allocates the host's copy: waits {first[0]:.2f} s, complete after {first[2]:.1f} s")
    costs = [background_cost(run, background, usual) for _ in range(saves)]
    waited, delayed, complete = (median(column) for column in zip(*costs, strict=True))
    share = (waited + delayed) / (60 * MINUTES)
    tell(f"in the background: waits {waited:.3f} s, delays steps by {delayed:.3f} s, complete after {complete:.1f} s")
    verdict = "reached" if share < GOAL else "missed"
    tell(f"every {MINUTES:g} minutes that is {share:.2%} of the time (goal under {GOAL:.0%}: {verdict})")
    at_once = Checkpointer(run.trainer)
    at_once.thread = None
    run.step()
    tell(f"not in the background: waits {run.save(at_once):.2f} s")
    for what in ("with", "without"):
        begun = time.perf_counter()
        at_once.resume()
        tell(f"resuming {what} digests: {time.perf_counter() - begun:.2f} s")
        newest = newest_checkpoint(folder)
        assert newest is not None
        (newest / SUMS).unlink(missing_ok=True)


def tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
