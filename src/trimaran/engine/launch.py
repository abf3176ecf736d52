"""Start a Job's processes on this machine and watch them, or join the processes that torchrun or SLURM started.

torchrun's own agent starts a Python for each rank (6 s for two ranks on two cores, 16 s for eight); here ranks are
forked from one that has imported torch (0.1 s). And it gives a failed run's other ranks 30 s to end, which is right for
ranks that can still save something, and wrong for ranks that wait for a dead one.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from trimaran.engine.failure import Failure, failure_of
from trimaran.engine.loop.train import Options, train
from trimaran.engine.rendezvous import Meeting, meeting
from trimaran.spec import Job
from trimaran.spec.codes import DONE, INTERRUPTED, NOT_FINITE, RANK_FAILED

SECONDS_TO_EXPLAIN = 2.0  # after a first failure: the true cause may be heard after its consequences
HOST = "127.0.0.1"
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def run(job: Job, options: Options, environment: Mapping[str, str] = os.environ) -> int:
    """Train in as many processes as the layout has devices. Gives the exit code."""
    place = meeting(environment, job.layout.devices)
    return joined(job, options, place) if place else Launch(job, options).watch()


class Launch:
    """Ranks of our own, forked here. Their store is ours, on a port that the system chose."""

    def __init__(self, job: Job, options: Options) -> None:
        self.interrupts = 0
        context, self.alive = get_context("fork"), os.pipe()
        self.ranks: list[BaseProcess] = []
        self.reports: list[Connection] = []
        for rank in range(job.layout.devices):
            report, theirs = context.Pipe()
            process = context.Process(target=rank_main, args=(job, options, rank, theirs, self.alive))
            process.start()
            theirs.close()
            self.ranks.append(process)
            self.reports.append(report)
        # Only now: the store has threads, and a fork beside a thread that holds a lock leaves it held for ever.
        self.store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.handlers = {number: signal.signal(number, self._interrupt) for number in STOPPING}
        for report in self.reports:
            with suppress(BrokenPipeError):  # it died already; `watch` will see it
                report.send(self.store.port)

    def _interrupt(self, *_: Any) -> None:
        """Once: after this step. Twice: now."""
        self.interrupts += 1
        for process in self.ranks:
            if process.is_alive():
                process.terminate() if self.interrupts == 1 else process.kill()

    def watch(self) -> int:
        """Wait for all ranks. At a failure end the others, and say what came first."""
        running = {process.sentinel: rank for rank, process in enumerate(self.ranks)}
        failures: list[Failure] = []
        deadline = float("inf")
        while running and time.monotonic() < deadline:
            for sentinel in wait(list(running), timeout=min(deadline - time.monotonic(), 3600.0)):
                failures += self._ending(running.pop(int(sentinel)))  # type: ignore[arg-type]
            if any(not failure.follows for failure in failures):
                break
            if failures:
                deadline = min(deadline, time.monotonic() + SECONDS_TO_EXPLAIN)
        for process in self.ranks:
            process.kill()
            process.join()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        codes = {process.exitcode for process in self.ranks}
        if self.interrupts or INTERRUPTED in codes:
            if INTERRUPTED not in codes:  # a rank that ends so has said where
                print("trimaran: interrupted before a step was done; nothing was saved by it.", file=sys.stderr)
            return INTERRUPTED
        if not failures:
            return NOT_FINITE if NOT_FINITE in codes else DONE
        cause = min(failures, key=lambda failure: failure.follows)  # of equals the first that was heard of
        print(f"trimaran: {cause.sentence}", file=sys.stderr)
        return cause.code

    def _ending(self, rank: int) -> list[Failure]:
        """Why a rank ended, if it should not have."""
        process, report = self.ranks[rank], self.reports[rank]
        process.join()
        code = process.exitcode
        if code in (DONE, INTERRUPTED, NOT_FINITE):
            return []
        with suppress(EOFError):  # it ended without a word
            return [report.recv()]
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            by = " (by hand, or by the kernel when memory ran out)" if name == "SIGKILL" else ""
            # gloo aborts the ranks that were connected with a dead one.
            return [Failure(RANK_FAILED, f"Rank {rank} was killed by {name}{by}.", follows=name == "SIGABRT")]
        return [Failure(RANK_FAILED, f"Rank {rank} ended with exit code {code} and said nothing.")]


def rank_main(job: Job, options: Options, rank: int, parent: Connection, alive: tuple[int, int]) -> None:
    """The whole life of a forked rank."""
    os.close(alive[1])
    Thread(target=_end_with_parent, args=(alive[0],), daemon=True).start()
    for number in STOPPING:  # a terminal's Ctrl-C reaches every process; the parent decides what it means
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    count = job.layout.devices
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
    try:
        port = parent.recv()
        store = dist.TCPStore(HOST, port, is_master=False, timeout=options.patience) if count > 1 else None
        code = train(job, options, store)
    except BaseException as error:
        failure = failure_of(error, rank)
        parent.send(failure)
        code = failure.code
    sys.stdout.flush()
    os._exit(code)  # without exit handlers: PyTorch's may wait for ranks that are gone


def _end_with_parent(alive: int) -> None:
    """Nothing is ever written to this pipe: reading ends when the parent does, however it does."""
    os.read(alive, 1)
    os._exit(RANK_FAILED)


def joined(job: Job, options: Options, place: Meeting) -> int:
    """Be one rank of a world that somebody else started, and watches."""
    os.environ.update(place.environment)
    store = None
    try:
        if place.world > 1:
            store, _, _ = next(dist.rendezvous("env://", timeout=options.patience))
        return train(job, options, store)
    except Exception as error:
        failure = failure_of(error, place.rank)
        if _may_speak(store, failure):
            print(f"trimaran: {failure.sentence}", file=sys.stderr, flush=True)
        os._exit(failure.code)


def _may_speak(store: Any, failure: Failure) -> bool:
    """One rank speaks: the one with the cause, which the others give a moment to come first."""
    if store is None:
        return True
    try:
        if failure.follows:
            time.sleep(SECONDS_TO_EXPLAIN)
        return int(store.add("trimaran/spoken", 1)) == 1
    except dist.DistError:  # the store went down with its rank
        return True
