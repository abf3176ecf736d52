"""A batch ramp-up: which nodes and which layout for each batch, and when changing them is worth the restart.

A small batch feeds few replicas, so more nodes pay off as the batch grows; but every change costs a restart. Dynamic
programming over (batches of the ramp) x (configurations) finds the schedule that ends first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.cost.columns import Columns
from trimaran.cost.predict import predict
from trimaran.planner.candidates import blocks, join_columns, layout_of
from trimaran.planner.question import Question
from trimaran.spec import Batch, Layout, Mistake, Ramp

Ids = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
KEY = ("dp", "tp", "pp", "virtual", "mbs", "zero", "recompute", "schedule", "sequence_parallel", "weighted")
MOST_TOKENS = 65536  # of a micro batch


@dataclass(frozen=True)
class Phase:
    """The iterations of a run at one batch size."""

    batch: int
    first_sample: int
    iterations: int

    @property
    def end_sample(self) -> int:
        return self.first_sample + self.batch * self.iterations


@dataclass(frozen=True)
class Configuration:
    """What a job script fixes: changing any of it is a restart."""

    nodes: int
    layout: Layout


@dataclass(frozen=True)
class PhaseCost:
    """A configuration at one batch: seconds of an iteration, and the share of it in which a stage waits."""

    configuration: Configuration
    seconds: float
    bubble: float


@dataclass(frozen=True)
class PhaseOptions:
    """Configurations that can run one phase; an id means the same configuration in every phase."""

    ids: Ids
    seconds: Seconds
    read: Callable[[int], PhaseCost]  # by position


@dataclass(frozen=True)
class Stretch:
    """Consecutive phases on one configuration."""

    phases: tuple[Phase, ...]
    costs: tuple[PhaseCost, ...]  # one a phase, all of one configuration

    @property
    def configuration(self) -> Configuration:
        return self.costs[0].configuration

    @property
    def hours(self) -> float:
        both = zip(self.phases, self.costs, strict=True)
        return sum(phase.iterations * cost.seconds for phase, cost in both) / 3600


@dataclass(frozen=True)
class RampSchedule:
    stretches: tuple[Stretch, ...]
    switch_hours: float  # of one switch

    @property
    def hours(self) -> float:
        return sum(s.hours for s in self.stretches) + self.switch_hours * (len(self.stretches) - 1)

    @property
    def node_hours(self) -> float:
        """Nodes are held during the switch to them."""
        waits = [0.0, *[self.switch_hours] * (len(self.stretches) - 1)]
        return sum((s.hours + wait) * s.configuration.nodes for s, wait in zip(self.stretches, waits, strict=True))

    def starts(self) -> Iterator[tuple[float, Stretch]]:
        """Hours from the beginning at which each stretch begins to train."""
        now = 0.0
        for stretch in self.stretches:
            yield now, stretch
            now += stretch.hours + self.switch_hours

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each stretch, as `trimaran ramp --json` has them."""
        return [
            {
                "nodes": s.configuration.nodes,
                "from_batch": s.phases[0].batch,
                "to_batch": s.phases[-1].batch,
                "from_sample": s.phases[0].first_sample,
                "to_sample": s.phases[-1].end_sample,
                "iterations": sum(phase.iterations for phase in s.phases),
                "start_hours": start,
                "hours": s.hours,
                "seconds_first": s.costs[0].seconds,
                "seconds_last": s.costs[-1].seconds,
                "bubble_first": s.costs[0].bubble,
                "bubble_last": s.costs[-1].bubble,
                "micro_batch": s.configuration.layout.micro_batch,
                "layout": s.configuration.layout.to_dict(),
            }
            for start, s in self.starts()
        ]

    def by_phase(self) -> list[tuple[Phase, PhaseCost]]:
        return [pair for s in self.stretches for pair in zip(s.phases, s.costs, strict=True)]


def ramp_phases(batch: Batch, samples: int) -> list[Phase]:
    """Every batch size that is in force for some iteration until `samples` are consumed, by Megatron's rule."""
    found, consumed = [], 0
    while consumed < samples:
        size = batch.size_after(consumed)
        left = -(-(samples - consumed) // size)  # the last iteration may overshoot
        iterations = left if size == batch.size else _iterations_at(batch, consumed, size, left)
        found.append(Phase(size, consumed, iterations))
        consumed += size * iterations
    return found


def _iterations_at(batch: Batch, consumed: int, size: int, at_most: int) -> int:
    """Iterations until the batch grows, by bisection: it never shrinks."""
    low, high = 1, at_most  # so many begin at this size, and no more than so many
    while low < high:
        middle = (low + high + 1) // 2
        if batch.size_after(consumed + (middle - 1) * size) == size:
            low = middle
        else:
            high = middle - 1
    return low


def practical_only(question: Question) -> Question:
    """Without layouts that only lengthen the search: tensor parallelism far across nodes, micro batches so large that
    no GEMM gains any more, more than 4 chunks a stage. What the user fixed stays as it is."""
    limits: dict[str, Iterable[int]] = {
        "tp": range(1, max(8, question.cluster.devices_per_node) + 1),
        "mbs": range(1, max(1, MOST_TOKENS // question.model.seq_len) + 1),
        "virtual_stages": (1, 2, 4),
    }
    return question.replace(fixed={}).fixing(**{**limits, **question.fixed})


def options_for(
    question: Question,
    run: Sequence[Phase],
    switch_hours: float,
    progress: Callable[[Sequence[Phase]], Iterable[Phase]] = iter,
) -> list[PhaseOptions]:
    """The configurations that can run each phase and could be part of the best schedule.

    No best schedule uses a configuration that loses more in one phase than switching away and back costs.
    """
    rows = [
        _rows(question.replace(batch=Batch(size=phase.batch)), 2 * switch_hours * 3600 / phase.iterations)
        for phase in progress(run)
    ]
    keys = [np.column_stack([getattr(columns, name) for name in KEY]).astype(np.int64) for columns, _, _ in rows]
    return [
        PhaseOptions(ids, seconds, _reader(question, columns, seconds, bubbles))
        for ids, (columns, seconds, bubbles) in zip(number_rows(keys), rows, strict=True)
    ]


def _rows(question: Question, slack_seconds: float) -> tuple[Columns, Seconds, Seconds]:
    """Layouts that run every size of the batch, within a slack of the fastest: columns, seconds, bubbles."""
    parts, best = [], inf
    for block in blocks(question):
        predicted = predict(block.columns, question.cluster, question.trainer)
        possible = block.allowed & predicted.fits
        seconds = np.where(possible, predicted.seconds, inf)
        best = min(best, float(seconds.min()))
        index = np.nonzero(possible & (seconds <= best + slack_seconds))
        bubbles = np.broadcast_to(predicted.time.bubble, seconds.shape)[index]
        parts.append((block.rows(index), seconds[index], bubbles))
    if best == inf:
        raise NoLayout(question)
    seconds = np.concatenate([part[1] for part in parts])
    bubbles = np.concatenate([part[2] for part in parts])
    kept = seconds <= best + slack_seconds
    return join_columns([part[0] for part in parts]).take(kept), seconds[kept], bubbles[kept]


class NoLayout(Mistake):
    """Nothing runs this question's batch."""

    def __init__(self, question: Question) -> None:
        self.question = question
        super().__init__(f"No layout runs batch {question.batch.size}.")


def _reader(question: Question, columns: Columns, seconds: Seconds, bubbles: Seconds) -> Callable[[int], PhaseCost]:
    def read(at: int) -> PhaseCost:
        layout = layout_of(columns, at)
        nodes = layout.devices // question.cluster.devices_per_node
        return PhaseCost(Configuration(nodes, layout), float(seconds[at]), float(bubbles[at]))

    return read


def number_rows(keys: Sequence[npt.NDArray[Any]]) -> list[Ids]:
    """The same id for the same row of key columns in every phase."""
    rows = np.concatenate(keys)
    flat = np.ravel_multi_index(tuple(rows.T), tuple(rows.max(axis=0) + 1))  # sorting one integer a row is fast
    _, ids = np.unique(flat, return_inverse=True)
    edges = np.cumsum([len(key) for key in keys])[:-1]
    return [part.astype(np.int64) for part in np.split(ids.reshape(-1), edges)]


def best_schedule(run: Sequence[Phase], options: Sequence[PhaseOptions], switch_hours: float) -> RampSchedule:
    """The schedule that ends first."""
    ids = [o.ids for o in options]
    hours = [phase.iterations * o.seconds / 3600 for phase, o in zip(run, options, strict=True)]
    positions = cheapest_path(ids, hours, switch_hours)
    return _schedule(run, [o.read(at) for o, at in zip(options, positions, strict=True)], switch_hours)


def cheapest_path(ids: Sequence[Ids], hours: Sequence[Seconds], switch_hours: float) -> list[int]:
    """Positions (one in each phase) of the path with the least hours, a change of id costing a switch.

    State: hours so far if phase i ends on configuration c = hours(i, c) + min(stayed on c, best of all + a switch).
    """
    count = 1 + max(int(phase.max()) for phase in ids)
    before = np.zeros(count)
    came_from: list[tuple[npt.NDArray[np.bool_], int]] = []
    for i, (here, cost) in enumerate(zip(ids, hours, strict=True)):
        best = int(before.argmin())
        switching = before[best] + (switch_hours if i else 0.0)
        stayed = before[here] <= switching
        came_from.append((stayed, best))
        after = np.full(count, inf)
        after[here] = cost + np.where(stayed, before[here], switching)
        before = after
    path, current = [], int(before.argmin())
    for here, (stayed, best) in zip(reversed(ids), reversed(came_from), strict=True):
        position = int(np.flatnonzero(here == current)[0])
        path.append(position)
        current = current if stayed[position] else best
    return path[::-1]


def best_unchanged(question: Question, run: Sequence[Phase], switch_hours: float) -> RampSchedule | None:
    """The best configuration that runs every batch of the run unchanged, or None."""
    spanning = question.replace(batch=_spanning(question.batch, run))
    try:
        _, fastest, _ = _rows(spanning, 0.0)
        slack = 0.05 * float(fastest[0])
        found, seconds = _unchanged(spanning, run, slack)
        # One that loses more in the last phase than all the others take cannot be the best; so this misses none.
        enough = seconds / run[-1].iterations - float(fastest[0])
        if enough > slack:
            found, seconds = _unchanged(spanning, run, enough)
    except NoLayout:
        return None
    return _schedule(run, found, switch_hours) if seconds < inf else None


def _unchanged(question: Question, run: Sequence[Phase], slack_seconds: float) -> tuple[list[PhaseCost], float]:
    """Of the layouts within a slack of the fastest in the last phase, the best over the whole run; and its seconds."""
    rows, _, _ = _rows(question, slack_seconds)
    total, readers = np.zeros(len(rows.dp)), []
    for phase in run:
        predicted = predict(replace(rows, gbs=float(phase.batch)), question.cluster, question.trainer)
        total += phase.iterations * np.where(predicted.fits, predicted.seconds, inf)
        bubbles = np.broadcast_to(predicted.time.bubble, total.shape)
        readers.append(_reader(question, rows, predicted.seconds, bubbles))
    best = int(total.argmin())
    return [read(best) for read in readers], float(total[best])


def _spanning(batch: Batch, run: Sequence[Phase]) -> Batch:
    """A batch whose sizes are those of the run, so that the rules are checked for all of them."""
    first, last = run[0].batch, run[-1].batch
    if batch.ramp is None or first == last:
        return Batch(size=last)
    return Batch(size=last, ramp=Ramp(start=first, increment=batch.ramp.increment, samples=1))


def _schedule(run: Sequence[Phase], picked: Sequence[PhaseCost], switch_hours: float) -> RampSchedule:
    stretches: list[tuple[list[Phase], list[PhaseCost]]] = []
    for phase, cost in zip(run, picked, strict=True):
        if not stretches or stretches[-1][1][-1].configuration != cost.configuration:
            stretches.append(([], []))
        stretches[-1][0].append(phase)
        stretches[-1][1].append(cost)
    return RampSchedule(tuple(Stretch(tuple(p), tuple(c)) for p, c in stretches), switch_hours)
