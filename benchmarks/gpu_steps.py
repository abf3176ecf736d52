"""Steps on one NVIDIA GPU, for the benchmarks that measure their time or memory."""

import gc
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch

from trimaran.data.source import source_of
from trimaran.engine.loop.batches import batch
from trimaran.engine.parallel.world import World, select_device
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job

GPU = select_device(0, cpu=False)  # before anything is allocated, as the trainer does

Step = Callable[[int], None]  # takes the step's number


def ours(job: Job) -> Step:
    trainer, source, size = Trainer(job, World(job.layout, GPU)), source_of(job), job.batch.size

    def step(number: int) -> None:
        trainer.step(batch(job, source, number * size, size, 0, GPU)).totals()

    return step


def timed(step: Step, first: int, count: int) -> list[float]:
    """Seconds of so many steps, by the device's clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for number, mark in enumerate(marks[1:]):
        step(first + number)
        mark.record()
    marks[-1].synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


class Peaks(NamedTuple):
    """Of the allocator, in bytes."""

    reserved: int
    allocated: int


def peak_memory(job: Job, steps: int = 3) -> Peaks | None:
    """Of so many steps of our trainer on an otherwise empty GPU; None where it ran out of memory."""
    free_memory()
    torch.cuda.reset_peak_memory_stats()
    done = 0
    try:
        step = ours(job)
        for done in range(steps):
            step(done)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        print(f"After {done} steps: {error}", file=sys.stderr, flush=True)
        return None
    return Peaks(torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated())


def free_memory() -> None:
    """Also of compiled code: PyTorch refuses to compile one function for many shapes."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
