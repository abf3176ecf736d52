"""Predictions: seconds with an interval, memory of the stages, and which constant leaves the interval wide.

`predict_job` is the entry for one Job and `predict_jobs` for many; `predict` and `interval` work on Columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from trimaran.cost.columns import Columns, columns_of
from trimaran.cost.constants import NAMES, Constants, constants_of, spreads_of
from trimaran.cost.flops import TrainingStep, model_flops, tflops_per_device
from trimaran.cost.memory import GIB, STAGES, PipelineMemory, memory
from trimaran.cost.time import StepTime, step_time
from trimaran.spec import Cluster, Job, TrainerProfile

COVERAGE = 0.8  # share of measurements that the interval should hold
Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)  # standard deviations from the middle to its ends
UNMEASURED_RESIDUAL = 0.20  # log time: on the measured GPU clusters the priors alone are off by 8 to 23 %
STEP = 0.05  # change of a constant's logarithm for its derivative


@dataclass(frozen=True)
class Prediction:
    """Of Columns, column by column."""

    seconds: Any
    memory_gib: Any  # of the fullest stage
    fits: Any
    time: StepTime
    memory: PipelineMemory


@dataclass(frozen=True)
class Interval:
    low: Any
    high: Any
    dominant: tuple[str, ...]  # per row, the constant that is open the widest
    dominant_share: Any  # by how much it alone may move the seconds, as a share


@dataclass(frozen=True)
class JobPrediction:
    """What the cost model predicts for one Job."""

    job: Job = field(repr=False)
    seconds: float  # per step
    low: float  # ends of the interval that holds COVERAGE of measurements
    high: float
    dominant: str  # the constant that leaves the interval widest
    dominant_share: float  # by how much it alone may move the seconds
    memory_gib: dict[str, float]  # as nvidia-smi would show it, by kind of stage: first, middle and last
    fits: bool
    bubble: float  # share of the pipeline's time that its stages wait

    @property
    def fullest_gib(self) -> float:
        """Of the fullest stage."""
        return max(self.memory_gib.values())

    @property
    def first_stage_gib(self) -> float:
        """What people read off nvidia-smi on the first node."""
        return self.memory_gib["first"]

    @property
    def tflops(self) -> float:
        """Model TFLOP/s per device: forward and backward, without what recompute repeats."""
        job = self.job
        step = TrainingStep(job.model, job.batch.size, job.layout.tp, job.layout.recompute)
        return float(tflops_per_device(model_flops(step), self.seconds, job.layout.devices))


def predict_job(job: Job) -> JobPrediction:
    """Seconds, interval, memory by stage and TFLOP/s of one Job on its own cluster with its own trainer."""
    return predict_jobs([job])[0]


def predict_jobs(jobs: Sequence[Job]) -> list[JobPrediction]:
    """The same for many, in order; Jobs of one cluster, trainer and format go through the cost model together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, job in enumerate(jobs):
        key = (_cluster_key(job.cluster), job.trainer.to_json(), job.precision, job.optimizer)
        groups.setdefault(key, []).append(i)
    found: dict[int, JobPrediction] = {}
    for members in groups.values():
        cluster, trainer = jobs[members[0]].cluster, jobs[members[0]].trainer
        columns = columns_of([jobs[i] for i in members])
        predicted, range_ = predict(columns, cluster, trainer), interval(columns, cluster, trainer)
        bubble = np.broadcast_to(predicted.time.bubble, len(members))
        stages = {stage: getattr(predicted.memory, stage).total / GIB for stage in STAGES}
        for row, i in enumerate(members):
            found[i] = JobPrediction(
                job=jobs[i],
                seconds=float(predicted.seconds[row]),
                low=float(range_.low[row]),
                high=float(range_.high[row]),
                dominant=range_.dominant[row],
                dominant_share=float(range_.dominant_share[row]),
                memory_gib={stage: float(stages[stage][row]) for stage in stage_kinds(jobs[i].layout.pp)},
                fits=bool(predicted.fits[row]),
                bubble=float(bubble[row]),
            )
    return [found[i] for i in range(len(jobs))]


def stage_kinds(pp: int) -> tuple[str, ...]:
    """The kinds of stage that a pipeline of so many has."""
    return {1: ("first",), 2: ("first", "last")}.get(pp, STAGES)


def _cluster_key(cluster: Cluster) -> str:
    """What the expressions read of a cluster. Where nothing shares cores they read a row's nodes from its columns."""
    if cluster.cores is not None:
        return cluster.to_json()
    return cluster.model_copy(update={"nodes": 1, "devices_per_node": 1, "conditions": ()}).to_json()


def predict(c: Columns, cluster: Cluster, trainer: TrainerProfile, k: Constants | None = None) -> Prediction:
    k = k or constants_of(cluster)
    time = step_time(c, cluster, trainer, k)
    held = memory(c, cluster, trainer, k)
    fullest = held.fullest_gib
    return Prediction(
        seconds=time.seconds * (1 + k.pressure_slowdown * pressure(fullest, cluster)),
        memory_gib=fullest,
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
    off = Z * np.sqrt(residual**2 + left_open**2)
    return Interval(
        low=seconds * np.exp(-off),
        high=seconds * np.exp(off),
        dominant=tuple(NAMES[i] for i in effect.argmax(axis=0)),
        dominant_share=np.expm1(Z * effect.max(axis=0)),
    )
