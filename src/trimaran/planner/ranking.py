"""Which layout is best: cost every candidate block by block, keep the best, say which others are as good.

Only what a reader may ask about is kept of each block: its best layouts, and the best of every (dp, tp, pp, mbs).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.cost.columns import Columns
from trimaran.cost.memory import memory
from trimaran.cost.predict import Interval, interval, predict
from trimaran.planner.candidates import Array, Block, blocks, layout_of
from trimaran.planner.parts import Parts, parts_of
from trimaran.planner.question import Question
from trimaran.spec import Layout

KEPT = 256  # best layouts of a block that are kept, whatever their cut
GRID_PAYS = 0.1  # share of a block that must fit for the time of all its layouts to be the cheaper way

# What is made small, from (seconds, memory GiB, devices).
OBJECTIVES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "time": lambda seconds, memory, devices: seconds,
    "tokens-per-device-hour": lambda seconds, memory, devices: seconds * devices,
    "memory": lambda seconds, memory, devices: memory + 1e-9 * seconds,  # the faster of two that need the same
    "nodes": lambda seconds, memory, devices: devices + 1e-9 * seconds,
}


@dataclass(frozen=True)
class Counts:
    """Where the layouts went."""

    considered: int = 0  # the batch divides
    refused: int = 0  # by a rule about schedules, recompute or ZeRO
    memory: int = 0
    feasible: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)))


@dataclass(frozen=True)
class Found:
    """The best layouts, best first, as flat columns with what they cost."""

    rows: Columns
    seconds: Array
    memory_gib: Array
    score: Array
    counts: Counts
    least_memory_gib: float = field(default=float("inf"))  # of any layout, also of those that do not fit

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, index: Any) -> "Found":
        return replace(
            self,
            rows=self.rows.take(index),
            seconds=self.seconds[index],
            memory_gib=self.memory_gib[index],
            score=self.score[index],
        )

    def layout(self, i: int) -> Layout:
        return layout_of(self.rows, i)


@dataclass(frozen=True)
class Choices:
    """The rows to show, with intervals, parts, and which tie with the first."""

    found: Found
    interval: Interval
    parts: Parts
    ties: npt.NDArray[np.bool_]


def search(question: Question, objective: str = "time", keep: int = KEPT) -> Found:
    """Every candidate costed; at least the `keep` best and the best of each cut, best first."""
    question.check()
    counts, kept, least = Counts(), list[Found](), float("inf")
    for block in blocks(question):
        feasible, needed_gib = _fitting(block, question)
        allowed, fitting = int(block.allowed.sum()), int(feasible.sum())
        counts += Counts(allowed + block.refused, block.refused, allowed - fitting, fitting)
        least = min(least, needed_gib)
        if fitting:
            kept.append(_best_of(block, np.nonzero(feasible), question, OBJECTIVES[objective], keep))
    if not kept:
        return Found(_nothing(), np.array([]), np.array([]), np.array([]), counts, least)
    return replace(_joined(kept), counts=counts, least_memory_gib=least)


def rank_of(question: Question, score: float, objective: str = "time") -> int:
    """The place of such a score among all layouts that fit, whether they were kept or not."""
    better = 0
    for block in blocks(question):
        feasible, _ = _fitting(block, question)
        if feasible.any():
            every = _best_of(block, np.nonzero(feasible), question, OBJECTIVES[objective], keep=int(feasible.sum()))
            better += int((every.score < score * (1 - 1e-9)).sum())
    return better + 1


def distinct(found: Found) -> Found:
    """One row for each (dp, tp, pp, mbs), the best of its ZeRO, recompute, schedule and split."""
    keys = np.stack([found.rows.dp, found.rows.tp, found.rows.pp, found.rows.mbs])
    _, first = np.unique(keys, axis=1, return_index=True)  # rows are sorted, so the first is the best
    return found.take(np.sort(first))


def choices(question: Question, found: Found, top: int, objective: str = "time") -> Choices:
    shown = found.take(np.arange(min(top, len(found))))
    cluster, trainer = question.cluster, question.trainer
    off = interval(shown.rows, cluster, trainer)
    return Choices(
        found=shown,
        interval=off,
        parts=parts_of(shown.rows, cluster, trainer),
        ties=ties(shown, off, objective),
    )


def ties(found: Found, off: Interval, objective: str = "time") -> npt.NDArray[np.bool_]:
    """Which rows the cost model cannot tell from the first.

    Most of an interval is common to all layouts of one model on one machine (how fast its matrix products are, say) and
    cancels in a comparison. We take half of the variance to be common, so the difference of two log times has half the
    sum of their variances; a tie is a difference within the same coverage as the intervals. Memory has no interval, so
    nothing ties there.
    """
    if objective == "memory":
        return np.asarray(np.arange(len(found)) == 0)
    deviation = np.log(off.high / off.low) / 2  # already at the interval's coverage
    apart = np.abs(np.log(found.score / found.score[0]))
    return np.asarray(apart <= np.sqrt((deviation**2 + deviation[0] ** 2) / 2))


def _fitting(block: Block, question: Question) -> tuple[npt.NDArray[np.bool_], float]:
    """Which layouts of a block fit, and what the smallest needs.

    Memory rises with the micro batch, so cuts are first asked with the smallest: most do not fit even there.
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


def _best_of(
    block: Block, fitting: tuple[Array, ...], question: Question, measure: Callable[[Any, Any, Any], Any], keep: int
) -> Found:
    """Cost what fits of a block: as a grid, which is cheap but wasted on what does not fit, or row by row."""
    rows = block.rows(fitting)
    grid = len(fitting[0]) > GRID_PAYS * block.allowed.size
    predicted = predict(block.columns if grid else rows, question.cluster, question.trainer)
    seconds, gib = (getattr(predicted, name)[fitting if grid else ...] for name in ("seconds", "memory_gib"))
    # An allocator that wants more for its fragments than the device has gets by with what there is.
    gib = np.minimum(gib, question.cluster.device.memory_gib)
    found = Found(rows, seconds, gib, measure(seconds, gib, rows.devices), Counts())
    return found.take(_worth_keeping(found, keep))


def _worth_keeping(found: Found, keep: int) -> Array:
    """Places of the `keep` best, and of the best of every (mbs, pp, dp)."""
    score, rows = found.score, found.rows
    best = np.argpartition(score, keep)[:keep] if score.size > keep else np.arange(score.size)
    order = np.lexsort((score, rows.dp, rows.pp, rows.mbs))
    cuts = np.stack([rows.mbs, rows.pp, rows.dp])[:, order]
    starts = np.append(True, (cuts[:, 1:] != cuts[:, :-1]).any(axis=0))
    return np.union1d(best, order[starts])


def _joined(parts: list[Found]) -> Found:
    score = np.concatenate([part.score for part in parts])
    order = np.argsort(score, kind="stable")
    rows: dict[str, Any] = {}
    for f in fields(Columns):
        values = [getattr(part.rows, f.name) for part in parts]
        rows[f.name] = values[0] if isinstance(values[0], str) else np.concatenate(values)[order]
    seconds, memory = (np.concatenate([getattr(p, name) for p in parts])[order] for name in ("seconds", "memory_gib"))
    return Found(Columns(**rows), seconds, memory, score[order], Counts())


def _nothing() -> Columns:
    none: dict[str, Any] = {f.name: np.array([]) for f in fields(Columns) if f.name not in ("precision", "optimizer")}
    return Columns(**none)
