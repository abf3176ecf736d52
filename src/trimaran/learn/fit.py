"""Fit a cluster's constants to measured seconds and memory: least squares on logarithms, robust, held by the priors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from trimaran.cost.columns import Columns, Rows, columns_by_format
from trimaran.cost.constants import MEMORY_NAMES, NAMES, Constants, Prior, priors_of
from trimaran.cost.memory import GIB, memory, stage_memory
from trimaran.cost.predict import predict
from trimaran.learn.trials import job_of
from trimaran.spec import Cluster, Mistake, TrainerProfile, Trial

TIME_NAMES = tuple(name for name in NAMES if name not in MEMORY_NAMES)
TIME_NOISE = 0.02  # of log seconds: one snapshot against another, and what no constant can explain
MEMORY_NOISE = 0.06  # of log memory: printed in whole gigabytes, of one node among many
FIT_NOISE = 0.005  # whether a card ran out is known much better than how full it was
ROBUST = 0.4  # residuals beyond this many noises count linearly: a wrong row must not bend the physics
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CalibrationRows:
    """Trials of one trainer as columns, with what was measured (NaN where it was not)."""

    trainer: TrainerProfile
    groups: list[tuple[Rows, Columns]]
    seconds: Array
    memory_gib: Array
    ran: Array  # 1: it fitted, -1: it ran out of memory, 0: not known
    weight: Array

    def evaluate(self, function: Callable[[Columns], Any]) -> Array:
        """A function of columns, for every trial in order."""
        values = np.empty(len(self.seconds))
        for places, columns in self.groups:
            values[places] = function(columns)
        return values


@dataclass(frozen=True)
class Fitted:
    constants: Constants
    spreads: dict[str, float]
    undetermined: tuple[str, ...]  # the data left them where the prior had them


def calibration_rows(trials: Sequence[Trial], cluster: Cluster, trainer: TrainerProfile) -> CalibrationRows:
    """A table counts as its rows, but as forty at most: otherwise the largest one dominates the fit."""
    tables = [trial.source.table for trial in trials]
    weights = [min(1.0, np.sqrt(40 / tables.count(table))) for table in tables]
    return CalibrationRows(
        trainer=trainer,
        groups=columns_by_format([job_of(trial, cluster, trainer) for trial in trials]),
        seconds=np.array([trial.outcome.seconds or np.nan for trial in trials]),
        memory_gib=np.array(
            [(trial.outcome.status == "ok" and trial.outcome.memory_gib) or np.nan for trial in trials], dtype=float
        ),
        ran=np.array([{"ok": 1.0, "oom": -1.0}.get(trial.outcome.status, 0.0) for trial in trials]),
        weight=np.array(weights),
    )


def predicted_seconds(rows: CalibrationRows, cluster: Cluster, k: Constants) -> Array:
    return rows.evaluate(lambda columns: predict(columns, cluster, rows.trainer, k).seconds)


def predicted_memory(rows: CalibrationRows, cluster: Cluster, k: Constants) -> Array:
    """Of the first stage: what people read off nvidia-smi on the first node."""
    return rows.evaluate(lambda columns: stage_memory(columns, cluster, rows.trainer, "first", k).total / GIB)


def fit(parts: Sequence[CalibrationRows], cluster: Cluster) -> Fitted:
    """Memory first, for its pressure slows the time; both start from the priors and move as far as the rows push."""
    priors = priors_of(cluster)
    start = Constants(**{name: priors[name].value for name in NAMES})
    memory = _least_squares(parts, cluster, start, priors, MEMORY_NAMES, _memory_residuals)
    time = _least_squares(parts, cluster, memory[0], priors, TIME_NAMES, _time_residuals)
    spreads = {**memory[1], **time[1]}
    undetermined = tuple(name for name in NAMES if spreads[name] > 0.8 * priors[name].spread)
    return Fitted(time[0], spreads, undetermined)


def _time_residuals(part: CalibrationRows, cluster: Cluster, k: Constants) -> Array:
    residual = np.log(predicted_seconds(part, cluster, k) / part.seconds) / TIME_NOISE
    return np.nan_to_num(residual) * part.weight


def _memory_residuals(part: CalibrationRows, cluster: Cluster, k: Constants) -> Array:
    """What was printed, and what is known without any print: a run that worked fitted, one that did not, did not."""
    residual = np.log(predicted_memory(part, cluster, k) / part.memory_gib) / MEMORY_NOISE
    needed = part.evaluate(lambda columns: memory(columns, cluster, part.trainer, k).needed_gib)
    over = np.log(needed / cluster.device.memory_gib) / FIT_NOISE
    broken = np.maximum(0.0, over * part.ran + 1.0) * np.abs(part.ran)  # clear of the limit by one noise at least
    return np.concatenate([np.nan_to_num(residual) * part.weight, broken])


def _least_squares(
    parts: Sequence[CalibrationRows],
    cluster: Cluster,
    start: Constants,
    priors: dict[str, Prior],
    names: tuple[str, ...],
    residuals: Any,
) -> tuple[Constants, dict[str, float]]:
    """The unknowns are distances from the priors in their own spreads, so the priors are just more residuals."""

    def constants(x: Array) -> Constants:
        moved = {n: priors[n].value * float(np.exp(priors[n].spread * v)) for n, v in zip(names, x, strict=True)}
        return start.replace(**moved)

    def objective(x: Array) -> Array:
        z = np.concatenate([residuals(part, cluster, constants(x)) for part in parts])
        robust = np.sign(z) * ROBUST * np.sqrt(2 * (np.sqrt(1 + (z / ROBUST) ** 2) - 1))
        return np.concatenate([robust, x])

    # A second start with a slow reduction: from a fast one its effect is too small to move it. Unscaled steps can fall
    # back into the first minimum from there (Fugaku's do).
    starts = [np.zeros(len(names)), np.array([3.0 if name == "reduction_ms" else 0.0 for name in names])]
    result = min((least_squares(objective, x, x_scale="jac") for x in starts), key=lambda found: float(found.cost))
    covariance = np.linalg.inv(result.jac.T @ result.jac)
    left_open = np.sqrt(np.diag(covariance))
    spreads = {n: round(float(priors[n].spread * s), 4) for n, s in zip(names, left_open, strict=True)}
    return constants(result.x), spreads


def rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.4g}")


def require(count: int, cluster: Cluster) -> None:
    """A fit needs something to fit to."""
    if count == 0:
        raise Mistake(
            f"The ledger holds no trial of the device {cluster.device.name} that states layers, hidden, batch, layout"
            " and seconds; import logs or tables of it first."
        )
    if count < 3:
        raise Mistake(f"{count} trials are too few for {len(NAMES)} constants, even with priors; three are the least.")
