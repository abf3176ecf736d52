"""A probe with all its ranks: forked on this machine, or joined where torchrun or SLURM started them."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trimaran.probe.measure import Asked, Told, measure
from trimaran.probe.measured import Measured
from trimaran.probe.world import PATIENCE, join
from trimaran.processes.exit_codes import BAD_JOB, DONE, INTERRUPTED
from trimaran.processes.ranks import Rank, run_ranks
from trimaran.processes.rendezvous import Rendezvous
from trimaran.spec import Mistake


class ProbeFailed(Exception):
    """A rank failed: its sentence, or nothing where another rank reports it."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class Doing:
    what: str
    share: float


def gpus_here() -> int:
    """Counted without starting CUDA, which forked ranks could not start again."""
    return torch.cuda.device_count()


def devices_here() -> int:
    """Ranks that a probe starts where none are asked for: one per GPU, else one per core, but two at least."""
    return gpus_here() or max(2, len(os.sched_getaffinity(0)))


def check_ranks(ranks: int, alone: bool) -> None:
    """`alone`: all of them will be on this machine."""
    gpus = gpus_here()
    if ranks < 1:
        raise Mistake(f"--ranks is {ranks}, but a probe needs at least 1.")
    if alone and gpus and ranks > gpus:
        raise Mistake(
            f"--ranks is {ranks}, but this machine has {gpus} GPUs, one for each rank; at most --ranks {gpus}."
        )


def run_probe(ranks: int, asked: Asked, told: Told, rendezvous: Rendezvous | None) -> Measured | None:
    """What rank 0 has measured together with the others; None in the other ranks of torchrun or SLURM."""
    results: list[Measured] = []

    def receive(message: Doing | Measured) -> None:
        if isinstance(message, Doing):
            told(message.what, message.share)
        else:
            results.append(message)

    end = run_ranks(ranks, lambda rank: _measure_rank(rank, asked), PATIENCE, rendezvous, receive)
    if end.code == INTERRUPTED:
        raise KeyboardInterrupt
    if end.code == BAD_JOB and end.reason:
        raise Mistake(end.reason)
    if end.code != DONE:
        raise ProbeFailed(end.reason, end.code)
    return results[0] if results else None


def _measure_rank(rank: Rank, asked: Asked) -> int:
    def told(what: str, share: float) -> None:
        if rank.rank == 0:
            rank.send(Doing(what, share))

    result = measure(join(rank.rank, rank.local_rank, rank.world_size, rank.store), asked, told)
    if rank.rank == 0:
        rank.send(result)
    if dist.is_initialized():
        dist.destroy_process_group()
    return DONE
