"""The search: cost every candidate block by block and rank what fits.

Of each block only its best layouts and the best of every (dp, tp, pp, mbs) are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.cost.columns import Columns
from trimaran.cost.memory import memory
from trimaran.cost.predict import predict
from trimaran.planner.candidates import Array, CandidateBlock, blocks, join_columns, layout_of
from trimaran.planner.question import Question
from trimaran.spec import Layout

KEPT = 256  # best layouts of a block that are kept, whatever their cut
GRID_PAYS = 0.1  # share of a block that must fit for costing the whole grid to be faster than row by row

# What is made small, from (seconds, memory GiB, devices).
OBJECTIVES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "time": lambda seconds, memory, devices: seconds,
    "tokens-per-device-hour": lambda seconds, memory, devices: seconds * devices,
    "memory": lambda seconds, memory, devices: memory + 1e-9 * seconds,  # the faster of two that need the same
    "nodes": lambda seconds, memory, devices: devices + 1e-9 * seconds,
}


@dataclass(frozen=True)
class Counts:
    """How many layouts were considered, and what became of them."""

    considered: int = 0  # those whose dp x micro batch divides the batch
    refused: int = 0  # by a rule about schedules, recompute or ZeRO
    memory: int = 0  # need more than a device has
    feasible: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)))


@dataclass(frozen=True)
class Ranking:
    """Layouts that fit, best first, as flat columns with what they cost."""

    rows: Columns
    seconds: Array
    memory_gib: Array
    score: Array
    counts: Counts
    least_memory_gib: float = float("inf")  # of any layout, also of those that do not fit

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, index: Any) -> "Ranking":
        return replace(
            self,
            rows=self.rows.take(index),
            seconds=self.seconds[index],
            memory_gib=self.memory_gib[index],
            score=self.score[index],
        )

    def layout(self, i: int) -> Layout:
        return layout_of(self.rows, i)


def search(question: Question, objective: str = "time", keep: int = KEPT) -> Ranking:
    """Every candidate costed; at least the `keep` best and the best of each cut, best first."""
    question.check()
    counts, kept, least = Counts(), list[Ranking](), float("inf")
    for block in blocks(question):
        feasible, needed_gib = _fitting(block, question)
        allowed, fitting = int(block.allowed.sum()), int(feasible.sum())
        counts += Counts(allowed + block.refused, block.refused, allowed - fitting, fitting)
        least = min(least, needed_gib)
        if fitting:
            kept.append(_best_of(block, feasible, question, objective, keep))
    rows = join_columns([part.rows for part in kept]) if kept else _no_rows()
    seconds, gib, score = (
        np.concatenate([getattr(part, name) for part in kept] or [[]]) for name in ("seconds", "memory_gib", "score")
    )
    return Ranking(rows, seconds, gib, score, counts, least).take(np.argsort(score, kind="stable"))


def rank_of(question: Question, score: float, objective: str = "time") -> int:
    """The rank such a score has among all layouts that fit, whether they were kept or not."""
    better = 0
    for block in blocks(question):
        feasible, _ = _fitting(block, question)
        if feasible.any():
            every = _best_of(block, feasible, question, objective, keep=int(feasible.sum()))
            better += int((every.score < score * (1 - 1e-9)).sum())
    return better + 1


def best_of_each_cut(ranking: Ranking) -> Ranking:
    """One row for each (dp, tp, pp, mbs): the best of its ZeRO stages, recompute modes, schedules and splits."""
    keys = np.stack([ranking.rows.dp, ranking.rows.tp, ranking.rows.pp, ranking.rows.mbs])
    _, first = np.unique(keys, axis=1, return_index=True)  # rows are sorted, so the first is the best
    return ranking.take(np.sort(first))


def _fitting(block: CandidateBlock, question: Question) -> tuple[npt.NDArray[np.bool_], float]:
    """Which layouts of a block fit, and what the smallest needs.

    Memory grows with the micro batch, so cuts are first costed with the smallest: most do not fit even there.
    """
    device_gib, allowed = question.cluster.device.memory_gib, block.allowed
    mbs = block.columns.mbs.ravel()
    smallest, everywhere = np.flatnonzero(mbs == mbs.min()), slice(None)
    needed = memory(block.part(smallest, everywhere), question.cluster, question.trainer).needed_gib
    least = float(np.min(needed, where=allowed[smallest], initial=np.inf))
    hopeful = (needed <= device_gib).any(axis=(0, 2))
    fits = np.zeros_like(allowed)
    if hopeful.any():
        needed = memory(block.part(everywhere, hopeful), question.cluster, question.trainer).needed_gib
        fits[:, hopeful] = allowed[:, hopeful] & (needed <= device_gib)
        least = min(least, float(np.min(needed, where=allowed[:, hopeful], initial=np.inf)))
    return fits, least


def _best_of(block: CandidateBlock, feasible: Array, question: Question, objective: str, keep: int) -> Ranking:
    """Cost what fits of a block: the whole grid, which is cheaper per layout but wasted on what does not fit, or row by
    row."""
    fitting = np.nonzero(feasible)
    rows = block.rows(fitting)
    grid = len(fitting[0]) > GRID_PAYS * block.allowed.size
    predicted = predict(block.columns if grid else rows, question.cluster, question.trainer)
    seconds, gib = (getattr(predicted, name)[fitting if grid else ...] for name in ("seconds", "memory_gib"))
    # The allocator's fragmentation is capped by what the device has.
    gib = np.minimum(gib, question.cluster.device.memory_gib)
    ranking = Ranking(rows, seconds, gib, OBJECTIVES[objective](seconds, gib, rows.devices), Counts())
    return ranking.take(_indices_to_keep(ranking, keep))


def _indices_to_keep(ranking: Ranking, keep: int) -> Array:
    """Indices of the `keep` best, and of the best of every (mbs, pp, dp)."""
    score, rows = ranking.score, ranking.rows
    best = np.argpartition(score, keep)[:keep] if score.size > keep else np.arange(score.size)
    order = np.lexsort((score, rows.dp, rows.pp, rows.mbs))
    cuts = np.stack([rows.mbs, rows.pp, rows.dp])[:, order]
    starts = np.append(True, (cuts[:, 1:] != cuts[:, :-1]).any(axis=0))
    return np.union1d(best, order[starts])


def _no_rows() -> Columns:
    none: dict[str, Any] = {f.name: np.array([]) for f in fields(Columns) if f.name not in ("precision", "optimizer")}
    return Columns(**none)
