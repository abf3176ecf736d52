"""A probe with all its ranks: forked on this machine, or joined where torchrun or SLURM started them."""

import os

import torch
import torch.distributed as dist

from trimaran.probe.measure import OnProgress, ProbeOptions, measure
from trimaran.probe.result import ProbeResult
from trimaran.probe.world import TIMEOUT, init_probe_world
from trimaran.processes.exit_codes import BAD_JOB, DONE, INTERRUPTED
from trimaran.processes.rank import Rank
from trimaran.processes.ranks import run_ranks
from trimaran.processes.rendezvous import Rendezvous
from trimaran.spec import Mistake


class ProbeFailed(Exception):
    """A rank failed: its sentence, or nothing where another rank reports it."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def count_gpus() -> int:
    """Counted without starting CUDA, which forked ranks could not start again."""
    return torch.cuda.device_count()


def default_ranks() -> int:
    """One per GPU, or without any one per core, but two at least."""
    return count_gpus() or max(2, len(os.sched_getaffinity(0)))


def check_ranks(ranks: int, on_one_machine: bool) -> None:
    gpus = count_gpus()
    if ranks < 1:
        raise Mistake(f"--ranks is {ranks}, but a probe needs at least 1.")
    if on_one_machine and gpus and ranks > gpus:
        raise Mistake(
            f"--ranks is {ranks}, but this machine has {gpus} GPUs, one for each rank; at most --ranks {gpus}."
        )


def run_probe(
    ranks: int, options: ProbeOptions, on_progress: OnProgress, rendezvous: Rendezvous | None
) -> ProbeResult | None:
    """The result of rank 0; None in the other ranks of torchrun or SLURM."""
    results: list[ProbeResult] = []

    def receive(message: ProbeResult | tuple[str, float]) -> None:
        if isinstance(message, ProbeResult):
            results.append(message)
        else:
            on_progress(*message)

    end = run_ranks(ranks, lambda rank: _measure_rank(rank, options), TIMEOUT, rendezvous, receive)
    if end.code == INTERRUPTED:
        raise KeyboardInterrupt
    if end.code == BAD_JOB and end.reason:
        raise Mistake(end.reason)
    if end.code != DONE:
        raise ProbeFailed(end.reason, end.code)
    return results[0] if results else None


def _measure_rank(rank: Rank, options: ProbeOptions) -> int:
    def on_progress(what: str, share: float) -> None:
        if rank.rank == 0:
            rank.send((what, share))

    world = init_probe_world(rank.rank, rank.local_rank, rank.world_size, rank.store)
    rank.heartbeat.beat("measuring")
    result = measure(world, options, on_progress)
    if rank.rank == 0:
        rank.send(result)
    if dist.is_initialized():
        dist.destroy_process_group()
    return DONE
