"""Stragglers: a rank that takes longer than its peers for the same work holds up all of them, and a step's time does
not tell which one it is. So each rank times what it does without waiting for others, and all learn of it with the loss.

Timed are: building the batch and the optimizer's update, always; forward and backward passes where nothing in them
waits for another rank (neither tensor parallelism nor sharded weights).
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

from trimaran.spec import Layout

WINDOW = 8  # iterations
NEEDED = 7  # of them in which the rank was slow
RATIO = 1.5  # to the median of its peers
LEAST_SECONDS = 0.5e-3  # more than its peers, or it is noise


class LocalClock:
    """Seconds that this rank spent on its own work, by step. A GPU's are known later, and nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.host_seconds = 0.0
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.pending: deque[tuple[float, list[tuple[torch.cuda.Event, torch.cuda.Event]]]] = deque()
        self.latest = 0.0  # of the last step that is known

    @contextmanager
    def host(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.host_seconds += time.perf_counter() - begun

    @contextmanager
    def device(self) -> Iterator[None]:
        if not self.on_gpu:
            with self.host():
                yield
            return
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        yield
        ended.record()
        self.events.append((begun, ended))

    def end_step(self) -> None:
        self.pending.append((self.host_seconds, self.events))
        self.host_seconds, self.events = 0.0, []

    def seconds(self) -> float:
        """Of the last step whose kernels have all ended."""
        while self.pending and all(ended.query() for _, ended in self.pending[0][1]):
            host, events = self.pending.popleft()
            self.latest = host + sum(begun.elapsed_time(ended) for begun, ended in events) / 1e3
        return self.latest


@dataclass(frozen=True)
class Straggler:
    rank: int
    host: str
    slowdown: float  # its time over the median of its peers


class StragglerDetector:
    """Compares ranks of the same pipeline stage, which do the same work."""

    def __init__(self, layout: Layout, hosts: Sequence[str]) -> None:
        self.peers, self.hosts = layout.dp * layout.tp, hosts
        self.recent: deque[list[float]] = deque(maxlen=WINDOW)  # slowdown of every rank

    def find(self, seconds: Sequence[float]) -> Straggler | None:
        """The slowest rank of those that were slow in nearly all of the last iterations. `seconds`: of this one, by
        rank."""
        self.recent.append([self._slowdown(rank, seconds) for rank in range(len(seconds))])
        slow = {
            rank: median(slowdowns)
            for rank, slowdowns in enumerate(zip(*self.recent, strict=True))
            if sum(slowdown > RATIO for slowdown in slowdowns) >= NEEDED
        }
        if not slow:
            return None
        rank = max(slow, key=slow.__getitem__)
        return Straggler(rank, self.hosts[rank], round(slow[rank], 2))

    def _slowdown(self, rank: int, seconds: Sequence[float]) -> float:
        first = rank - rank % self.peers
        others = [seconds[peer] for peer in range(first, first + self.peers) if peer != rank]
        usual = median(others) if others else 0.0
        return seconds[rank] / usual if usual and seconds[rank] - usual > LEAST_SECONDS else 1.0
