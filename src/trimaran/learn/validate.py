"""How good is the fit on tables it did not see? Each is left out in turn, and predicted by a fit to the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.cost.predict import COVERAGE, Z, deviation
from trimaran.learn.fit import Array, CalibrationRows, Fitted, calibration_rows, fit, predicted_seconds
from trimaran.spec import Cluster, TrainerProfile, Trial


@dataclass(frozen=True)
class LeftOut:
    """Log errors of rows predicted without their table, what the constants left open of them, and the tables."""

    error: Array
    open: Array
    table: tuple[str, ...]

    @property
    def mape(self) -> float:
        return float(np.mean(np.abs(np.expm1(self.error))))

    @property
    def residual(self) -> float:
        """The further deviation at which the interval holds the share of rows that it promises."""
        return residual_of(self.error, self.open)

    @property
    def coverage(self) -> float:
        """Share of rows inside an interval that was set without their table."""
        inside = []
        for table in sorted(set(self.table)):
            here = np.array([name == table for name in self.table])
            r = residual_of(self.error[~here], self.open[~here])
            inside.append(np.abs(self.error[here]) <= Z * np.sqrt(r**2 + self.open[here] ** 2))
        return float(np.mean(np.concatenate(inside)))


def residual_of(error: Array, open_: Array) -> float:
    needed = np.sqrt(np.maximum((np.abs(error) / Z) ** 2 - open_**2, 0.0))
    return round(float(np.quantile(needed, COVERAGE)), 4) if len(needed) else 0.0


def leave_tables_out(
    trials: Sequence[Trial],
    cluster: Cluster,
    trainer: Callable[[Trial], TrainerProfile],
    table: Callable[[Trial], str] = lambda trial: trial.source.table,
    report: Callable[[int, int], object] = lambda done, of: None,
) -> LeftOut:
    timed = [trial for trial in trials if trial.outcome.seconds]
    tables = sorted({table(trial) for trial in timed})
    errors, opens, names = [], [], []
    for i, left in enumerate(tables):
        report(i, len(tables))
        others = [trial for trial in trials if table(trial) != left]
        if not others:
            continue
        found = fit(by_trainer(others, cluster, trainer), cluster)
        for part in by_trainer([trial for trial in timed if table(trial) == left], cluster, trainer):
            errors.append(np.log(predicted_seconds(part, cluster, found.constants) / part.seconds))
            opens.append(left_open(part, cluster, found))
            names += [left] * len(part.seconds)
    empty = np.array([])
    return LeftOut(np.concatenate(errors or [empty]), np.concatenate(opens or [empty]), tuple(names))


def by_trainer(
    trials: Sequence[Trial], cluster: Cluster, trainer: Callable[[Trial], TrainerProfile]
) -> list[CalibrationRows]:
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trainer(trial).name, []).append(trial)
    return [calibration_rows(group, cluster, trainer(group[0])) for group in groups.values()]


def left_open(part: CalibrationRows, cluster: Cluster, found: Fitted) -> Array:
    """Deviation of log time that the constants' spreads leave."""
    return part.evaluate(lambda columns: deviation(columns, cluster, part.trainer, found.constants, found.spreads)[0])
