"""Predictions against measurements: how far off, how sure, and does the best predicted layout win?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from trimaran.cost.predict import interval, predict
from trimaran.cost.setups import of_setups
from trimaran.spec import Cluster, TrainerProfile, Trial


@dataclass(frozen=True)
class Predicted:
    """One row's prediction beside what was measured (None where it was not)."""

    trial: Trial
    seconds: float
    low: float
    high: float
    memory_gib: float  # of the first stage, as people read it
    fullest_gib: float
    fits: bool
    bubble: float
    dominant: str
    dominant_share: float

    @property
    def error(self) -> float | None:
        measured = self.trial.outcome.seconds
        return None if measured is None else self.seconds / measured - 1

    @property
    def memory_error(self) -> float | None:
        measured = self.trial.outcome.memory_gib
        return None if not measured or self.trial.outcome.status != "ok" else self.memory_gib / measured - 1


def predict_trials(
    trials: Sequence[Trial], cluster: Callable[[Trial], Cluster], trainer: Callable[[Trial], TrainerProfile]
) -> list[Predicted]:
    """One prediction a trial, in order; rows of the same cluster and trainer go through the cost model together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, trial in enumerate(trials):
        groups.setdefault((cluster(trial).name, trainer(trial).name), []).append(i)
    out: dict[int, Predicted] = {}
    for members in groups.values():
        chosen = [trials[i] for i in members]
        at, with_ = cluster(chosen[0]), trainer(chosen[0])
        for places, columns in of_setups([t.setup for t in chosen], at, [t.source.date for t in chosen]):
            found, range_ = predict(columns, at, with_), interval(columns, at, with_)
            bubble = np.broadcast_to(found.time.bubble, len(places))
            for row, place in enumerate(places):
                out[members[place]] = Predicted(
                    trial=chosen[place],
                    seconds=float(found.seconds[row]),
                    low=float(range_.low[row]),
                    high=float(range_.high[row]),
                    memory_gib=float(found.first_stage_gib[row]),
                    fullest_gib=float(found.memory_gib[row]),
                    fits=bool(found.fits[row]),
                    bubble=float(bubble[row]),
                    dominant=range_.dominant[row],
                    dominant_share=float(range_.dominant_share[row]),
                )
    return [out[i] for i in range(len(trials))]


@dataclass(frozen=True)
class Score:
    """Of one table, or of all. Shares, not percents; None where nothing was measured."""

    table: str
    rows: int
    mape: float | None
    median: float | None
    bias: float | None
    coverage: float | None
    memory_mape: float | None
    fit_right: int  # rows that ran or ran out of memory, as predicted
    fit_wrong: int
    rank: float | None  # correlation of predicted and measured order, of three layouts or more
    regret: float | None  # measured time of the layout predicted best, over the best measured


def score(rows: Sequence[Predicted], table: str) -> Score:
    timed = [row for row in rows if row.error is not None]
    errors = np.array([row.error for row in timed], dtype=float)
    inside = [row.low <= (row.trial.outcome.seconds or 0) <= row.high for row in timed]
    memory = [abs(row.memory_error) for row in rows if row.memory_error is not None]
    judged = [
        row.fits == (row.trial.outcome.status == "ok") for row in rows if row.trial.outcome.status in ("ok", "oom")
    ]
    rank, regret = _ranking(timed)
    return Score(
        table=table,
        rows=len(rows),
        mape=float(np.abs(errors).mean()) if len(timed) else None,
        median=float(np.median(np.abs(errors))) if len(timed) else None,
        bias=float(errors.mean()) if len(timed) else None,
        coverage=float(np.mean(inside)) if inside else None,
        memory_mape=float(np.mean(memory)) if memory else None,
        fit_right=sum(judged),
        fit_wrong=len(judged) - sum(judged),
        rank=rank,
        regret=regret,
    )


def _ranking(timed: Sequence[Predicted]) -> tuple[float | None, float | None]:
    """Per sample, since batches may differ; only with three layouts or more of comparable models."""
    sizes = {row.trial.setup.size_label for row in timed}
    if len(timed) < 3 or len(sizes) > 1:
        return None, None
    predicted = np.array([row.seconds / (row.trial.setup.gbs or 1) for row in timed])
    measured = np.array([(row.trial.outcome.seconds or 0) / (row.trial.setup.gbs or 1) for row in timed])
    rank = float(spearmanr(predicted, measured).statistic) if len(set(measured)) > 1 else None
    return rank, float(measured[predicted.argmin()] / measured.min())
