"""Trainers on a CPU and their steps, in one process or on the ranks of a pool."""

from collections.abc import Iterable

import torch

from trimaran.data.source import source_of
from trimaran.engine.loop.batches import batch
from trimaran.engine.parallel.world import World, build_world
from trimaran.engine.trainer import StepResult, Trainer
from trimaran.spec import Job

CPU = torch.device("cpu")


def world_of(rank: int, job: Job) -> World:
    """A single process needs no process group; the pool has initialized the others'."""
    single = job.layout.devices == 1
    return World(job.layout, CPU) if single else build_world(job.layout, job.model.tied_embeddings, CPU, rank)


def trainer_of(rank: int, job: Job) -> Trainer:
    return Trainer(job, world_of(rank, job))


def run_steps(trainer: Trainer, steps: Iterable[int]) -> list[StepResult]:
    """These steps of the job, counted from 0, on its own data; without ramp-up."""
    job, world = trainer.job, trainer.world
    source, size = source_of(job), job.batch.size
    return [trainer.step(batch(job, source, i * size, size, world.dp_rank, CPU)) for i in steps]


def losses_of(trainer: Trainer, steps: Iterable[int]) -> list[float]:
    return [float(step.loss) for step in run_steps(trainer, steps)]
