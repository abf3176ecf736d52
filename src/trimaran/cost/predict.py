"""Prediction: seconds with an interval, memory, and what the interval is wide for."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from trimaran.cost.columns import Columns
from trimaran.cost.constants import NAMES, constants_of, spreads_of
from trimaran.cost.memory import GIB, memory_gib, stage_memory
from trimaran.cost.time import StepTime, step_time
from trimaran.spec import Cluster, Trainer

COVERAGE = 0.8  # share of measurements that the interval should hold
UNMEASURED_RESIDUAL = 0.10  # log time, where nothing was measured: what the shape of the model alone may miss
STEP = 0.05  # change of a constant's logarithm for its derivative


@dataclass(frozen=True)
class Prediction:
    seconds: Any
    memory_gib: Any  # of the fullest stage
    first_stage_gib: Any  # what nvidia-smi shows on the first node
    fits: Any
    time: StepTime


@dataclass(frozen=True)
class Interval:
    low: Any
    high: Any
    dominant: tuple[str, ...]  # per row, the constant that is open the widest
    dominant_share: Any  # by how much it alone may move the seconds, as a share


def predict(c: Columns, cluster: Cluster, trainer: Trainer) -> Prediction:
    time = step_time(c, cluster, trainer)
    fullest = memory_gib(c, cluster, trainer)
    return Prediction(
        seconds=time.seconds,
        memory_gib=fullest,
        first_stage_gib=stage_memory(c, cluster, trainer, "first").total / GIB,
        fits=fullest <= cluster.device.memory_gib,
        time=time,
    )


def interval(c: Columns, cluster: Cluster, trainer: Trainer) -> Interval:
    """How far the seconds may be off: the fit's residual on unseen tables, and every constant within its spread."""
    k, spreads = constants_of(cluster), spreads_of(cluster)
    seconds = np.atleast_1d(step_time(c, cluster, trainer, k).seconds)
    effects = []
    for name in NAMES:
        moved = k.but(**{name: getattr(k, name) * float(np.exp(STEP))})
        derivative = np.log(np.atleast_1d(step_time(c, cluster, trainer, moved).seconds) / seconds) / STEP
        effects.append(np.abs(derivative) * spreads[name])
    effect = np.array(effects)
    residual = UNMEASURED_RESIDUAL if cluster.residual is None else cluster.residual
    deviation = np.sqrt(residual**2 + (effect**2).sum(axis=0))
    z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)
    widest = effect.argmax(axis=0)
    return Interval(
        low=seconds * np.exp(-z * deviation),
        high=seconds * np.exp(z * deviation),
        dominant=tuple(NAMES[i] for i in widest),
        dominant_share=np.expm1(z * effect.max(axis=0)),
    )
