"""Seconds of a function while every rank calls the same: median over rounds, until three rounds agree.

Processes that share a core get time slices of some milliseconds, so a single call says nothing: a round is long enough
for many slices, and all ranks are busy for the whole of it.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from trimaran.probe.world import ProbeWorld

Work = Callable[[], object]

TOLERANCE, ROUNDS = 0.05, 3  # so many rounds within this share of their median are enough
MAX_CALLS = 2000


@dataclass(frozen=True)
class Stopwatch:
    world: ProbeWorld
    round_seconds: float
    max_rounds: int

    @property
    def longest_seconds(self) -> float:
        """Longer calls are skipped."""
        return 6 * self.round_seconds

    def seconds(self, work: Work) -> float:
        """Of work without communication."""
        if self.world.device.type == "cuda":
            return self.seconds_together(work)
        work()
        return self._until_stable(lambda: _time_window(work, self.round_seconds))

    def seconds_together(self, work: Work, takes_part: bool = True) -> float:
        """Of a collective: all ranks call it equally often. Ranks that do not take part are not averaged."""
        work()
        one = self.world.mean(_time_calls(work, 1, self.world.device), takes_part)
        calls = int(min(max(self.round_seconds / max(one, 1e-7), 1), MAX_CALLS))
        return self._until_stable(lambda: _time_calls(work, calls, self.world.device), takes_part)

    def _until_stable(self, one_round: Callable[[], float], counts: bool = True) -> float:
        rounds: list[float] = []
        self.world.mean(0.0)  # a barrier
        while len(rounds) < self.max_rounds:
            rounds.append(self.world.mean(one_round(), counts))
            if is_stable(rounds):
                break
        return median(rounds)


def stopwatch(world: ProbeWorld, quick: bool) -> Stopwatch:
    """Longer rounds where ranks share cores: each must get many time slices."""
    if world.device.type == "cuda":
        return Stopwatch(world, 0.02, ROUNDS if quick else 7)
    sharing = max(1.0, world.per_node / len(os.sched_getaffinity(0)))
    return Stopwatch(world, (0.02 if quick else 0.03) * sharing, ROUNDS if quick else 5)


def is_stable(rounds: list[float]) -> bool:
    last = rounds[-ROUNDS:]
    return len(last) == ROUNDS and max(last) - min(last) <= TOLERANCE * median(last)


def _time_window(work: Work, round_seconds: float) -> float:
    """As many calls as the round allows."""
    calls, start = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        passed = time.perf_counter() - start
        if passed >= round_seconds:
            return passed / calls


def _time_calls(work: Work, calls: int, device: torch.device) -> float:
    """By events on a GPU, which runs asynchronously to the host."""
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
