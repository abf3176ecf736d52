"""Predictions against measurements: how far off, how sure, and does the best predicted layout win?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from trimaran.cost.predict import JobPrediction, predict_jobs
from trimaran.learn.trials import cluster_of, job_of, trainer_of
from trimaran.spec import Cluster, TrainerProfile, Trial


@dataclass(frozen=True)
class PredictedTrial:
    """What is predicted beside what was measured (None where it was not)."""

    trial: Trial
    prediction: JobPrediction

    @property
    def seconds(self) -> float:
        return self.prediction.seconds

    @property
    def memory_gib(self) -> float:
        """Of the first stage, as people read it."""
        return self.prediction.first_stage_gib

    @property
    def error(self) -> float | None:
        measured = self.trial.outcome.seconds
        return None if measured is None else self.seconds / measured - 1

    @property
    def memory_error(self) -> float | None:
        measured = self.trial.outcome.memory_gib
        return None if not measured or self.trial.outcome.status != "ok" else self.memory_gib / measured - 1


def predict_trials(
    trials: Sequence[Trial],
    cluster: Callable[[Trial], Cluster] = cluster_of,
    trainer: Callable[[Trial], TrainerProfile] = trainer_of,
) -> list[PredictedTrial]:
    """One prediction per trial, in order."""
    predictions = predict_jobs([job_of(trial, cluster(trial), trainer(trial)) for trial in trials])
    return [PredictedTrial(trial, prediction) for trial, prediction in zip(trials, predictions, strict=True)]


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


def score(rows: Sequence[PredictedTrial], table: str) -> Score:
    timed = [row for row in rows if row.error is not None]
    errors = np.array([row.error for row in timed], dtype=float)
    inside = [row.prediction.low <= (row.trial.outcome.seconds or 0) <= row.prediction.high for row in timed]
    memory = [abs(row.memory_error) for row in rows if row.memory_error is not None]
    ended = [row for row in rows if row.trial.outcome.status in ("ok", "oom")]
    judged = [row.prediction.fits == (row.trial.outcome.status == "ok") for row in ended]
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


def _ranking(timed: Sequence[PredictedTrial]) -> tuple[float | None, float | None]:
    """Per sample, since batches may differ; only with three layouts or more of comparable models."""
    sizes = {row.trial.setup.size_label for row in timed}
    if len(timed) < 3 or len(sizes) > 1:
        return None, None
    predicted = np.array([row.seconds / (row.trial.setup.gbs or 1) for row in timed])
    measured = np.array([(row.trial.outcome.seconds or 0) / (row.trial.setup.gbs or 1) for row in timed])
    rank = float(spearmanr(predicted, measured).statistic) if len(set(measured)) > 1 else None
    return rank, float(measured[predicted.argmin()] / measured.min())
