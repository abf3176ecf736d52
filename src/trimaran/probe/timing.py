"""Seconds of a piece of work while every rank does the same: median over rounds, until three rounds agree.

Processes that share a core take turns of some milliseconds, so a single call tells nothing: a round is long enough for
many turns, and all ranks work through the whole of it.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from trimaran.probe.world import World

Work = Callable[[], object]

AGREE, AGAIN = 0.05, 3  # this many rounds within this share of their median are enough
MOST_CALLS = 2000


@dataclass(frozen=True)
class Stopwatch:
    world: World
    round_seconds: float
    most_rounds: int

    @property
    def longest_seconds(self) -> float:
        """A call longer than this is not worth its time in a probe."""
        return 6 * self.round_seconds

    def seconds(self, work: Work) -> float:
        """Of work that each rank does for itself."""
        if self.world.device.type == "cuda":
            return self.seconds_together(work)
        work()
        return self._until_stable(lambda: _windowed(work, self.round_seconds))

    def seconds_together(self, work: Work, takes_part: bool = True) -> float:
        """Of work that ranks do with each other: all must call it equally often. One without a part does not count."""
        work()
        one = self.world.mean(_counted(work, 1, self.world.device), takes_part)
        calls = int(min(max(self.round_seconds / max(one, 1e-7), 1), MOST_CALLS))
        return self._until_stable(lambda: _counted(work, calls, self.world.device), takes_part)

    def _until_stable(self, one_round: Callable[[], float], counts: bool = True) -> float:
        rounds: list[float] = []
        self.world.mean(0.0)  # all begin together
        while len(rounds) < self.most_rounds:
            rounds.append(self.world.mean(one_round(), counts))
            if stable(rounds):
                break
        return median(rounds)


def stopwatch(world: World, quick: bool) -> Stopwatch:
    """Longer rounds where ranks share cores: each must have had many turns."""
    if world.device.type == "cuda":
        return Stopwatch(world, 0.02, AGAIN if quick else 7)
    sharing = max(1.0, world.per_node / len(os.sched_getaffinity(0)))
    return Stopwatch(world, (0.02 if quick else 0.03) * sharing, AGAIN if quick else 5)


def stable(rounds: list[float]) -> bool:
    last = rounds[-AGAIN:]
    return len(last) == AGAIN and max(last) - min(last) <= AGREE * median(last)


def _windowed(work: Work, round_seconds: float) -> float:
    """As many calls as the round allows."""
    calls, start = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        passed = time.perf_counter() - start
        if passed >= round_seconds:
            return passed / calls


def _counted(work: Work, calls: int, device: torch.device) -> float:
    """A GPU works behind the host's back, so its own events tell the time."""
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls
