"""Ranks as child processes of this one: forked, watched, and ended together.

torchrun's own agent starts a Python for each rank (6 s for two ranks on two cores, 16 s for eight); here ranks are
forked from one that has imported torch (0.1 s). And it gives a failed run's other ranks 30 s to end, which is right for
ranks that can still save something, and wrong for ranks that wait for a dead one.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from trimaran.processes.exit_codes import DONE, INTERRUPTED, NOT_FINITE, RANK_FAILED
from trimaran.processes.failure import RankFailure, failure_of
from trimaran.processes.hang import collect_evidence
from trimaran.processes.heartbeat import STARTING, iterations_done, read_heartbeats
from trimaran.processes.kernel import end_with_parent, state_of
from trimaran.processes.rank import SECONDS_TO_EXPLAIN, Rank, Receive, RunEnd, start_heartbeat
from trimaran.processes.signals import STOP_SIGNALS, caught_signals
from trimaran.spec import Mistake

POLL_SECONDS = 1.0  # between looks for a rank that is stopped by a signal, of which nothing else tells
HOST = "127.0.0.1"


class ForkedRanks:
    """Child processes that meet in a store of this one, on a port that the system chose."""

    def __init__(self, world_size: int, timeout: timedelta, heartbeats: Path | None) -> None:
        self.world_size, self.timeout = world_size, timeout
        self.heartbeats, self.temporary = heartbeats, None
        if heartbeats is None:
            with suppress(OSError):  # the disk is full, say: ranks run without heartbeats
                self.heartbeats = self.temporary = Path(tempfile.mkdtemp(prefix="trimaran-"))
        self.interrupts = 0
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self.handlers: dict[int, Any] = {}
        self.stopped: dict[int, float] = {}  # since when

    def run(self, main: Callable[[Rank], int], receive: Receive) -> RunEnd:
        """Nothing is left behind: no rank, and the temporary folder only where it explains a hang."""
        try:
            self._start(main)
            failures = self._watch(receive)
            self._kill()
            return self._end(failures)
        finally:
            self._kill()
            if self.temporary is not None:
                shutil.rmtree(self.temporary, ignore_errors=True)
            for number, handler in self.handlers.items():
                signal.signal(number, handler)

    def _start(self, main: Callable[[Rank], int]) -> None:
        import torch.distributed as dist

        context = get_context("fork")
        # A signal that comes while ranks are forked waits until each process has its own handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self.handlers = {number: signal.signal(number, self._interrupt) for number in caught_signals()}
            for rank in range(self.world_size):
                pipe, theirs = context.Pipe()
                arguments = (rank, self.world_size, main, self.timeout, theirs, os.getpid(), self.heartbeats)
                process = context.Process(target=_rank_main, args=arguments)
                process.start()
                theirs.close()
                self.processes.append(process)
                self.pipes.append(pipe)
        except OSError as error:
            raise Mistake(
                f"Rank {len(self.processes)} of {self.world_size} could not be started: {error.strerror};"
                " a layout of fewer devices needs fewer processes."
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        # Only now: the store has threads, and a fork beside a thread that holds a lock leaves it held for ever.
        self.store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        for pipe in self.pipes:
            with suppress(OSError):  # it died already; `_watch` will see it
                pipe.send(self.store.port)

    def _interrupt(self, *_: Any) -> None:
        """The first signal asks the ranks to stop after their step, the second kills them."""
        self.interrupts += 1
        for process in self.processes:
            if process.is_alive():
                process.terminate() if self.interrupts == 1 else process.kill()

    def _watch(self, receive: Receive) -> list[RankFailure]:
        """Wait for all ranks, or for a failure and what else then fails."""
        running = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        failures: dict[int, RankFailure] = {}
        deadline = float("inf")
        while running and time.monotonic() < deadline:
            for pipe in wait(list(running), timeout=min(max(0.0, deadline - time.monotonic()), POLL_SECONDS)):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except (EOFError, OSError):  # the rank ended, perhaps before it read anything, or while it sent this
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
                return list(failures.values())
            if failures:
                deadline = min(deadline, time.monotonic() + SECONDS_TO_EXPLAIN)
            elif self._is_stopped():
                break
        if (running and not failures) or any(failure.timed_out for failure in failures.values()):
            return [RankFailure(RANK_FAILED, self._explain_hang(failures))]
        return list(failures.values())

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
            sentence = f"Rank {rank} was killed by {name}{by}."
            if name != "SIGABRT":
                return RankFailure(RANK_FAILED, sentence, killed=True)
            # gloo aborts the ranks that were connected with a dead one, NCCL those whose collective timed out.
            oldest = min((beat["time"] for beat in self._beats() if "time" in beat), default=time.time())
            timed_out = time.time() - oldest > self.timeout.total_seconds()
            return RankFailure(RANK_FAILED, sentence, is_consequence=True, timed_out=timed_out, killed=True)
        return RankFailure(RANK_FAILED, f"Rank {rank} ended with exit code {code} and gave no reason.")

    def _is_stopped(self) -> bool:
        """Whether a rank is stopped by a signal for longer than the others wait for it; they may not wait, or be none.
        A rank that is only slow looks like one that hangs, until the others time out."""
        now = time.monotonic()
        stopped = [rank for rank, process in enumerate(self.processes) if state_of(process.pid or 0) == "T"]
        self.stopped = {rank: self.stopped.get(rank, now) for rank in stopped}
        return any(now - since > self.timeout.total_seconds() + SECONDS_TO_EXPLAIN for since in self.stopped.values())

    def _beats(self) -> list[dict[str, Any]]:
        """The last of every rank of this run; the folder may have those of an earlier one."""
        written = {beat["pid"]: beat for beat in read_heartbeats(self.heartbeats)} if self.heartbeats else {}
        starting = {"host": socket.gethostname(), "doing": STARTING, "iteration": 0}
        return [
            written.get(process.pid, {"rank": rank, "pid": process.pid, **starting})
            for rank, process in enumerate(self.processes)
        ]

    def _explain_hang(self, failures: dict[int, RankFailure]) -> str:
        gave_up = {rank: {"waits_in": failure.waits_in} for rank, failure in failures.items()}
        beats = [beat | gave_up.get(beat["rank"], {}) for beat in self._beats()]
        reason, _ = collect_evidence(self.heartbeats, beats)
        self.temporary = None  # it is kept
        stacks = f"; the stacks of the ranks are in {self.heartbeats}" if self.heartbeats else ""
        return f"{reason} Ended after a timeout of {self.timeout.total_seconds():g} s{stacks}."

    def _kill(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()

    def _end(self, failures: list[RankFailure]) -> RunEnd:
        codes = [process.exitcode for process in self.processes]
        if codes[-1] == INTERRUPTED:  # the last rank has printed after which iteration
            return RunEnd(INTERRUPTED)
        if self.interrupts and all(failure.killed or failure.is_consequence for failure in failures):
            return RunEnd(INTERRUPTED, "interrupted.", iterations_done(self._beats()))
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
    parent_pid: int,
    heartbeats: Path | None,
) -> None:
    """The whole life of a forked rank."""
    end_with_parent(parent_pid)
    for number in STOP_SIGNALS:  # a terminal's Ctrl-C reaches every process; the parent decides what it means
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    heartbeat = start_heartbeat(heartbeats, rank)
    try:
        port = parent.recv()
        store = dist.TCPStore(HOST, port, is_master=False, timeout=timeout) if world_size > 1 else None
        code = main(Rank(rank, rank, world_size, store, parent.send, heartbeat))
    except BaseException as error:
        failure = failure_of(error, rank)
        heartbeat.leave_traceback(error)
        with suppress(OSError):  # the parent is gone
            parent.send(failure)
        code = failure.code
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
    os._exit(code)  # without exit handlers: PyTorch's may wait for ranks that are gone
