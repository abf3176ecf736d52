"""Prediction: seconds with an interval, memory, and what the interval is wide for."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from trimaran.cost.columns import Columns
from trimaran.cost.constants import NAMES, Constants, constants_of, spreads_of
from trimaran.cost.memory import GIB, Memory, memory
from trimaran.cost.time import StepTime, step_time
from trimaran.spec import Cluster, TrainerProfile

COVERAGE = 0.8  # share of measurements that the interval should hold
UNMEASURED_RESIDUAL = 0.20  # log time: on the measured GPU clusters the priors alone are off by 8 to 23 %
STEP = 0.05  # change of a constant's logarithm for its derivative


@dataclass(frozen=True)
class Prediction:
    seconds: Any
    memory_gib: Any  # of the fullest stage
    first_stage_gib: Any  # what nvidia-smi shows on the first node
    fits: Any
    time: StepTime
    memory: Memory


@dataclass(frozen=True)
class Interval:
    low: Any
    high: Any
    dominant: tuple[str, ...]  # per row, the constant that is open the widest
    dominant_share: Any  # by how much it alone may move the seconds, as a share


def predict(c: Columns, cluster: Cluster, trainer: TrainerProfile, k: Constants | None = None) -> Prediction:
    k = k or constants_of(cluster)
    time = step_time(c, cluster, trainer, k)
    held = memory(c, cluster, trainer, k)
    fullest = held.fullest_gib
    return Prediction(
        seconds=time.seconds * (1 + k.pressure_slowdown * pressure(fullest, cluster)),
        memory_gib=fullest,
        first_stage_gib=held.first.total / GIB,
        fits=held.needed_gib <= cluster.device.memory_gib,
        time=time,
        memory=held,
    )


def pressure(fullest_gib: Any, cluster: Cluster) -> Any:
    """0 with room to spare, 1 when the card is full: there the caching allocator frees and asks again, and waits."""
    return np.clip((fullest_gib / cluster.device.memory_gib - 0.93) / 0.02, 0.0, 1.0)


def deviation(
    c: Columns, cluster: Cluster, trainer: TrainerProfile, k: Constants, spreads: dict[str, float]
) -> tuple[Any, Any]:
    """Standard deviation of log seconds that the constants' spreads leave open, and each constant's part of it."""
    seconds = np.atleast_1d(step_time(c, cluster, trainer, k).seconds)
    effects = []
    for name in NAMES:
        moved = k.replace(**{name: getattr(k, name) * float(np.exp(STEP))})
        derivative = np.log(np.atleast_1d(step_time(c, cluster, trainer, moved).seconds) / seconds) / STEP
        effects.append(np.abs(derivative) * spreads[name])
    effect = np.array(effects)
    return np.sqrt((effect**2).sum(axis=0)), effect


def interval(c: Columns, cluster: Cluster, trainer: TrainerProfile) -> Interval:
    """How far the seconds may be off: the fit's residual on unseen tables, and every constant within its spread."""
    k = constants_of(cluster)
    seconds = np.atleast_1d(predict(c, cluster, trainer, k).seconds)
    left_open, effect = deviation(c, cluster, trainer, k, spreads_of(cluster))
    residual = UNMEASURED_RESIDUAL if cluster.residual is None else cluster.residual
    z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)
    off = z * np.sqrt(residual**2 + left_open**2)
    return Interval(
        low=seconds * np.exp(-off),
        high=seconds * np.exp(off),
        dominant=tuple(NAMES[i] for i in effect.argmax(axis=0)),
        dominant_share=np.expm1(z * effect.max(axis=0)),
    )
