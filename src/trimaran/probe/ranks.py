"""The ranks of a probe: forked on this machine, or joined where torchrun or SLURM started them."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from trimaran.probe.measure import Asked, Told, measure
from trimaran.probe.measured import Measured
from trimaran.probe.world import PATIENCE, join
from trimaran.spec import Mistake

HOST = "127.0.0.1"


class RankFailed(Exception):
    """A sentence about the rank that failed first."""


@dataclass(frozen=True)
class Doing:
    what: str
    share: float


Message = Doing | Measured | Mistake | RankFailed


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


def joined(asked: Asked, told: Told, environment: Mapping[str, str] = os.environ) -> Measured:
    """As one rank of a world that somebody else started and watches."""
    rank = int(environment["RANK"])
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
        result = measure(join(rank, int(environment["LOCAL_RANK"]), size, store), asked, told)
    except Mistake:
        raise
    except Exception as error:
        raise RankFailed(_sentence(rank, error)) from None
    dist.destroy_process_group()
    return result


def forked(ranks: int, asked: Asked, told: Told) -> Measured:
    """As `ranks` processes here. Interrupted or failed, none is left."""
    started: list[tuple[BaseProcess, Connection]] = []
    try:
        with _interrupts_later():
            started.extend(_start(rank, ranks, asked) for rank in range(ranks))
        # Only now: the store has threads, and a fork beside a thread that holds a lock leaves it held for ever.
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        for _, pipe in started:
            with suppress(BrokenPipeError):  # it died already; `_listen` will see it
                pipe.send(store.port)
        return _listen(started, told)
    finally:
        for process, _ in started:
            process.kill()
            process.join()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Python forgets a KeyboardInterrupt that comes while it forks."""
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        raise KeyboardInterrupt


def _start(rank: int, ranks: int, asked: Asked) -> tuple[BaseProcess, Connection]:
    context = get_context("fork")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_rank_main, args=(rank, ranks, asked, theirs))
    process.start()
    theirs.close()
    return process, pipe


def _listen(started: list[tuple[BaseProcess, Connection]], told: Told) -> Measured:
    """Until rank 0 has the result, or any rank fails."""
    pipes = {pipe: rank for rank, (_, pipe) in enumerate(started)}
    while True:
        for ready in wait(list(pipes)):
            assert isinstance(ready, Connection)
            message = _received(ready, pipes[ready], started[pipes[ready]][0])
            if isinstance(message, Doing):
                told(message.what, message.share)
            elif isinstance(message, Measured):
                return message
            elif message is not None:
                raise message
            else:
                del pipes[ready]


def _received(pipe: Connection, rank: int, process: BaseProcess) -> Message | None:
    with suppress(EOFError, ConnectionResetError):  # it ended without a word, perhaps before it heard one
        received: Message = pipe.recv()
        return received
    process.join()
    code = process.exitcode or 0
    if code == 0:
        return None
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return RankFailed(f"Rank {rank} {how}, so nothing was measured.")


def _rank_main(rank: int, ranks: int, asked: Asked, parent: Connection) -> None:
    """The whole life of a forked rank. A terminal's Ctrl-C reaches every process; the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    code = 0
    try:
        store: Any = dist.TCPStore(HOST, parent.recv(), is_master=False, timeout=PATIENCE)
        told: Told = (lambda what, share: parent.send(Doing(what, share))) if rank == 0 else (lambda what, share: None)
        result = measure(join(rank, rank, ranks, store), asked, told)
        if rank == 0:
            parent.send(result)
    except BaseException as error:
        code = 1
        with suppress(OSError):  # the parent is gone
            parent.send(error if isinstance(error, Mistake) else RankFailed(_sentence(rank, error)))
    sys.stdout.flush()
    os._exit(code)  # without exit handlers: PyTorch's may wait for ranks that are gone


def _sentence(rank: int, error: BaseException) -> str:
    said = (str(error).strip().splitlines() or ["without a word"])[0]
    return f"Rank {rank} failed: {type(error).__name__}: {said}"
