"""A cluster with what was learned about it, and how well that predicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.cost.constants import NAMES
from trimaran.learn.fit import Array, Fitted, fit, predicted_memory, predicted_seconds, require, rounded
from trimaran.learn.validate import LeftOut, by_trainer, leave_tables_out
from trimaran.spec import Cluster, TrainerProfile, Trial


@dataclass(frozen=True)
class Learned:
    cluster: Cluster
    fitted: Fitted
    rows: int
    seconds_error: float | None  # mean absolute relative error on the rows themselves
    memory_error: float | None
    left_out: LeftOut | None  # None with a single table: nothing could be left out


def learn(
    trials: Sequence[Trial],
    cluster: Cluster,
    trainer: Callable[[Trial], TrainerProfile],
    table: Callable[[Trial], str],
    report: Callable[[int, int], object] = lambda done, of: None,
) -> Learned:
    timed = sum(trial.outcome.seconds is not None for trial in trials)
    require(timed, cluster)
    parts = by_trainer(trials, cluster, trainer)
    fitted = fit(parts, cluster)
    seconds = np.concatenate([predicted_seconds(p, cluster, fitted.constants) / p.seconds - 1 for p in parts])
    memory = np.concatenate([predicted_memory(p, cluster, fitted.constants) / p.memory_gib - 1 for p in parts])
    tables = {table(trial) for trial in trials if trial.outcome.seconds}
    left_out = leave_tables_out(trials, cluster, trainer, table, report) if len(tables) > 1 else None
    judged = f", {left_out.mape:.1%} on tables left out" if left_out else ""
    source = f"Learned from {timed} measured times in {len(tables)} tables; mean error {_mean(seconds):.1%}{judged}."
    updated = cluster.replace(
        constants={name: rounded(getattr(fitted.constants, name)) for name in NAMES},
        spreads=fitted.spreads,
        residual=left_out.residual if left_out else None,
        sources={**cluster.sources, "constants": source, "spreads": "What the same fit left open."}
        | ({"residual": "Set so that intervals hold 80 % of the rows left out."} if left_out else {}),
    )
    return Learned(updated, fitted, timed, _mean(seconds), _mean(memory), left_out)


def _mean(errors: Array) -> float | None:
    known = np.abs(errors[np.isfinite(errors)])
    return float(known.mean()) if len(known) else None
