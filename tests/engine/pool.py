"""Eight processes that every test shares: `pool.run(4, function, arguments)` calls the function on four of them, in a
gloo process group, and returns their results by rank."""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from tests.processes import LIMIT_SECONDS

SIZE = 8
RUNS = 8  # then the processes are replaced: PyTorch caches device meshes, and with them gloo's threads, which add up


class Pool:
    def __init__(self) -> None:
        self.workers: list[tuple[Any, Connection]] = []
        self.runs = 0

    def run(self, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Fails with the first worker's traceback; workers that hang or die are replaced."""
        self.runs += 1
        if self.runs % RUNS == 0:
            self.stop()
        if not self.workers:
            self._start()
        with tempfile.TemporaryDirectory() as folder:
            members = self.workers[:size]
            message = pickle.dumps((size, os.path.join(folder, "store"), function, arguments))
            for _, pipe in members:
                pipe.send_bytes(message)
            results: dict[int, Any] = {}
            waiting = {pipe: rank for rank, (_, pipe) in enumerate(members)}
            while waiting:
                ready = wait(list(waiting), timeout=LIMIT_SECONDS)
                if not ready:
                    self.stop()
                    raise AssertionError(f"ranks {sorted(waiting.values())} did not answer in {LIMIT_SECONDS} s")
                for pipe in ready:
                    rank = waiting.pop(pipe)  # type: ignore[arg-type]
                    try:
                        ok, results[rank] = pipe.recv()  # type: ignore[union-attr]
                    except EOFError:
                        ok, results[rank] = False, "the process died"
                    if not ok:
                        self.stop()  # the others hang in a collective
                        raise AssertionError(f"rank {rank} of {size}: {results[rank]}")
            return [results[rank] for rank in range(size)]

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(rank, theirs), daemon=True)
            worker.start()
            theirs.close()
            self.workers.append((worker, ours))

    def stop(self) -> None:
        for worker, pipe in self.workers:
            worker.kill()
            worker.join()
            pipe.close()
        self.workers = []


def _work(rank: int, pipe: Connection) -> None:
    # What it inherits would keep other programs' pipes open: a browser that other tests have started would not end. Not
    # closed, because objects that the parent left here close them in their time, whatever has the number then.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in (null, pipe.fileno()):
            with suppress(OSError):  # of the listing itself
                os.dup2(null, descriptor)
    torch.set_num_threads(1)
    while True:
        size, store, function, arguments = pickle.loads(pipe.recv_bytes())
        try:
            if size > 1:
                dist.init_process_group(
                    "gloo",
                    store=dist.FileStore(store, size),
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=LIMIT_SECONDS),
                )
            pipe.send((True, function(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
