"""Start the ranks of a run on this machine and watch them, or join the ranks that torchrun or SLURM started.

torchrun's own agent starts a Python for each rank (6 s for two ranks on two cores, 16 s for eight); here ranks are
forked from one that has imported torch (0.1 s). And it gives a failed run's other ranks 30 s to end, which is right for
ranks that can still save something, and wrong for ranks that wait for a dead one.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

from trimaran.processes.exit_codes import DONE, INTERRUPTED, NOT_FINITE, RANK_FAILED
from trimaran.processes.failure import RankFailure, failure_of
from trimaran.processes.rendezvous import Rendezvous

SECONDS_TO_EXPLAIN = 2.0  # after a first failure: the cause may arrive after its consequences
HOST = "127.0.0.1"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

Receive = Callable[[Any], None]


@dataclass(frozen=True)
class Rank:
    """What a rank's own function is called with; it returns the rank's exit code."""

    rank: int
    local_rank: int
    world_size: int
    store: Any  # where the ranks meet; None for a single one
    send: Receive  # to the process that started the run, or to this one where torchrun or SLURM did


@dataclass(frozen=True)
class RunEnd:
    code: int
    reason: str = ""  # a sentence for stderr; empty where all went well, or a rank has printed it


def run_ranks(
    world_size: int,
    main: Callable[[Rank], int],
    timeout: timedelta,
    rendezvous: Rendezvous | None = None,
    receive: Receive = lambda message: None,
) -> RunEnd:
    """`main` in every rank: forked here, or in this process as one of those that have a rendezvous.
    `timeout`: how long a rank waits for the others; `receive`: called with what ranks send."""
    if rendezvous is None:
        return ForkedRanks(world_size, main, timeout).watch(receive)
    return _join(rendezvous, main, timeout, receive)


class ForkedRanks:
    """Child processes that meet in a store of this one, on a port that the system chose."""

    def __init__(self, world_size: int, main: Callable[[Rank], int], timeout: timedelta) -> None:
        import torch.distributed as dist

        self.interrupts = 0
        context, self.alive = get_context("fork"), os.pipe()
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        # A signal that comes while ranks are forked waits until each process has its own handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        self.handlers = {number: signal.signal(number, self._interrupt) for number in STOP_SIGNALS}
        for rank in range(world_size):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_rank_main, args=(rank, world_size, main, timeout, theirs, self.alive))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(pipe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        # Only now: the store has threads, and a fork beside a thread that holds a lock leaves it held for ever.
        self.store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        for pipe in self.pipes:
            with suppress(BrokenPipeError):  # it died already; `watch` will see it
                pipe.send(self.store.port)

    def _interrupt(self, *_: Any) -> None:
        """The first signal asks the ranks to stop after their step, the second kills them."""
        self.interrupts += 1
        for process in self.processes:
            if process.is_alive():
                process.terminate() if self.interrupts == 1 else process.kill()

    def watch(self, receive: Receive) -> RunEnd:
        """Wait for all ranks. At a failure end the others, and return what came first."""
        running = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        failures: dict[int, RankFailure] = {}
        deadline = float("inf")
        while running and time.monotonic() < deadline:
            for pipe in wait(list(running), timeout=min(deadline - time.monotonic(), 3600.0)):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionResetError):  # the rank ended, perhaps before it read anything
                    rank = running.pop(pipe)
                    message = failures.get(rank) or self._unexplained(rank)
                    if message is not None:
                        failures[rank] = message
                    continue
                if isinstance(message, RankFailure):
                    failures[running[pipe]] = message
                else:
                    receive(message)
            if any(not failure.is_consequence for failure in failures.values()):
                break
            if failures:
                deadline = min(deadline, time.monotonic() + SECONDS_TO_EXPLAIN)
        self._close()
        return self._end(list(failures.values()))

    def _unexplained(self, rank: int) -> RankFailure | None:
        """Why a rank ended that has sent no reason; None where it should have ended."""
        process = self.processes[rank]
        process.join()
        code = process.exitcode
        if code in (DONE, INTERRUPTED, NOT_FINITE):
            return None
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            by = " (by hand, or by the kernel when memory ran out)" if name == "SIGKILL" else ""
            # gloo aborts the ranks that were connected with a dead one.
            return RankFailure(RANK_FAILED, f"Rank {rank} was killed by {name}{by}.", is_consequence=name == "SIGABRT")
        return RankFailure(RANK_FAILED, f"Rank {rank} ended with exit code {code} and gave no reason.")

    def _close(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for descriptor in self.alive:
            os.close(descriptor)

    def _end(self, failures: list[RankFailure]) -> RunEnd:
        codes = {process.exitcode for process in self.processes}
        if INTERRUPTED in codes:  # a rank that ends so has printed after which iteration
            return RunEnd(INTERRUPTED)
        if self.interrupts:
            return RunEnd(INTERRUPTED, "interrupted before a step was done; nothing was saved by it.")
        if failures:
            cause = min(failures, key=lambda failure: failure.is_consequence)  # of equals the first that arrived
            return RunEnd(cause.code, cause.sentence)
        return RunEnd(NOT_FINITE if NOT_FINITE in codes else DONE)


def _rank_main(
    rank: int,
    world_size: int,
    main: Callable[[Rank], int],
    timeout: timedelta,
    parent: Connection,
    alive: tuple[int, int],
) -> None:
    """The whole life of a forked rank."""
    for number in STOP_SIGNALS:  # a terminal's Ctrl-C reaches every process; the parent decides what it means
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.close(alive[1])
    Thread(target=_end_with_parent, args=(alive[0],), daemon=True).start()
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    try:
        port = parent.recv()
        store = dist.TCPStore(HOST, port, is_master=False, timeout=timeout) if world_size > 1 else None
        code = main(Rank(rank, rank, world_size, store, parent.send))
    except BaseException as error:
        failure = failure_of(error, rank)
        with suppress(OSError):  # the parent is gone
            parent.send(failure)
        code = failure.code
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
    os._exit(code)  # without exit handlers: PyTorch's may wait for ranks that are gone


def _end_with_parent(alive: int) -> None:
    """Nothing is ever written to this pipe: reading ends when the parent does, however it does."""
    os.read(alive, 1)
    os._exit(RANK_FAILED)


def _join(rendezvous: Rendezvous, main: Callable[[Rank], int], timeout: timedelta, receive: Receive) -> RunEnd:
    """Be one rank of a run that torchrun or SLURM started, and watches."""
    import torch.distributed as dist

    os.environ.update(rendezvous.environment)
    store = None
    try:
        if rendezvous.world_size > 1:
            store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
        rank = Rank(rendezvous.rank, rendezvous.local_rank, rendezvous.world_size, store, receive)
        return RunEnd(main(rank))
    except Exception as error:
        failure = failure_of(error, rendezvous.rank)
        return RunEnd(failure.code, failure.sentence if _is_first_to_report(store, failure) else "")


def _is_first_to_report(store: Any, failure: RankFailure) -> bool:
    """One rank reports: the one with the cause, which the others give a moment to come first."""
    import torch.distributed as dist

    if store is None:
        return True
    try:
        if failure.is_consequence:
            time.sleep(SECONDS_TO_EXPLAIN)
        return int(store.add("trimaran/spoken", 1)) == 1
    except dist.DistError:  # the store went down with its rank
        return True
