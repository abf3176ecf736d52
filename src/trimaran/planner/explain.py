"""Where the time of a step and the memory of each stage go: `step_breakdown` for Columns, `explain` for one Job."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimaran.cost.columns import Columns, RecomputeCode, columns_of
from trimaran.cost.memory import GIB
from trimaran.cost.predict import Interval, Prediction, interval, predict, stage_kinds
from trimaran.cost.stages import stage_layer_counts
from trimaran.cost.time import step_time
from trimaran.planner.tables import ShownAsTables, TitledTable
from trimaran.planner.timeline import Span, timeline
from trimaran.spec import Cluster, Job, TrainerProfile

NOTABLE = 0.10  # of a step: what is less does not limit it

PART_LABELS = {
    "compute": "compute",
    "recompute": "memory (recompute)",
    "tensor_parallel": "tensor-parallel communication",
    "transfer": "pipeline transfers",
    "logits": "logits on the last stage",
    "bubble": "pipeline bubble",
    "reduction": "data-parallel reduction",
    "optimizer": "optimizer",
    "pressure": "full memory",
}
MEMORY_LABELS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations in flight",
    "working": "one layer recomputed",
    "logits": "logits",
    "buffers": "buffers",
    "context": "device context",
    "slack": "lost to fragments",
}


@dataclass(frozen=True)
class StepBreakdown:
    """Seconds per step by part (the keys of PART_LABELS), column by column."""

    seconds: dict[str, Any]
    predicted: Prediction

    def shares(self) -> dict[str, Any]:
        return {name: seconds / self.predicted.seconds for name, seconds in self.seconds.items()}

    def bottleneck(self, i: int) -> str:
        """The largest part beside useful compute where it is a tenth of the step or more, else compute."""
        shares = {name: float(np.atleast_1d(share)[i]) for name, share in self.shares().items()}
        name = max((name for name in shares if name != "compute"), key=lambda name: shares[name])
        name = name if shares[name] >= NOTABLE else "compute"
        return f"{PART_LABELS[name]} {shares[name]:.0%}"


def step_breakdown(rows: Columns, cluster: Cluster, trainer: TrainerProfile) -> StepBreakdown:
    """Along the slowest stage of the pipeline; the parts sum to the step."""
    predicted = predict(rows, cluster, trainer)
    time = predicted.time
    without = step_time(replace(rows, recompute=np.full_like(rows.recompute, RecomputeCode.NONE)), cluster, trainer)
    running = time.seconds / rows.slowdown - time.reduction - time.optimizer  # micro batches and bubble
    bubble = running * time.bubble
    stages = np.stack(np.broadcast_arrays(time.first_stage, time.middle_stage, time.last_stage, rows.pp * 1.0)[:3])
    stages[1] = np.where(np.broadcast_to(rows.pp, stages[1].shape) > 2, stages[1], 0.0)
    slowest = stages.argmax(axis=0)
    layers = np.choose(slowest, np.broadcast_arrays(*stage_layer_counts(rows), slowest)[:3])
    alone = np.broadcast_to(rows.pp == 1, slowest.shape)
    parts = {
        "recompute": layers * (time.layer_compute - without.layer_compute),
        "tensor_parallel": layers * time.layer_tensor_parallel,
        "transfer": time.transfer,
        "logits": np.where((slowest == 2) | alone, time.head, 0.0),
        "compute": layers * without.layer_compute,
    }
    scale = rows.slowdown * (running - bubble) / sum(parts.values())  # a stage's parts, over all micro batches
    seconds = {
        **{name: value * scale for name, value in parts.items()},
        "bubble": bubble * rows.slowdown,
        "reduction": time.reduction * rows.slowdown,
        "optimizer": time.optimizer * rows.slowdown,
        "pressure": predicted.seconds - time.seconds,
    }
    return StepBreakdown({name: seconds[name] for name in PART_LABELS}, predicted)


@dataclass(frozen=True, repr=False)
class Explanation(ShownAsTables):
    """Of one Job. Sizes are in bytes, times in seconds."""

    job: Job
    breakdown: StepBreakdown
    interval: Interval

    @property
    def stages(self) -> tuple[str, ...]:
        """The kinds of stage that this pipeline has."""
        return stage_kinds(self.job.layout.pp)

    @property
    def seconds(self) -> float:
        return number(self.breakdown.predicted.seconds)

    @property
    def fits(self) -> bool:
        return bool(self.breakdown.predicted.fits[0])

    @property
    def bubble(self) -> float:
        return number(self.breakdown.predicted.time.bubble)

    @property
    def limited_by(self) -> str:
        return self.breakdown.bottleneck(0)

    def to_dict(self) -> dict[str, Any]:
        """What `trimaran explain --json` prints, without the timeline."""
        return {
            "job": self.job.name,
            "fits": self.fits,
            "device_gib": self.job.cluster.device.memory_gib,
            "memory_bytes": self.memory_bytes(),
            "seconds": self.seconds,
            "seconds_low": number(self.interval.low),
            "seconds_high": number(self.interval.high),
            "uncertain_most_about": self.interval.dominant[0],
            "time_seconds": self.time_seconds(),
            "limited_by": self.limited_by,
            "bubble": self.bubble,
            "micro_batches": self.job.micro_batches,
            "stage_seconds": self.stage_seconds(),
        }

    def tables(self) -> list[TitledTable]:
        """The seconds of a step by part, and the GiB of a device by part, for each kind of stage."""
        low, high = number(self.interval.low), number(self.interval.high)
        time = f"{self.job.name}: {self.seconds:.2f} s a step ({low:.2f} to {high:.2f}), limited by {self.limited_by}"
        parts = self.time_seconds()
        seconds = [
            [label, f"{parts[name]:.2f}", f"{parts[name] / self.seconds:.1%}"] for name, label in PART_LABELS.items()
        ]
        device = self.job.cluster.device
        room = f"GiB of a device by stage, of {device.memory_gib:g}: {'fits' if self.fits else 'does not fit'}"
        held = self.memory_bytes().values()
        labels = {**MEMORY_LABELS, "total": "total"}
        gib = [[label, *(f"{stage[name] / GIB:.2f}" for stage in held)] for name, label in labels.items()]
        return [
            TitledTable(time, ("part of a step", "seconds", "share"), seconds, left=(0,)),
            TitledTable(room, ("memory", *self.stages), gib, left=(0,)),
        ]

    def memory_bytes(self) -> dict[str, dict[str, float]]:
        """By kind of stage and part, and in total."""
        held = {stage: getattr(self.breakdown.predicted.memory, stage) for stage in self.stages}
        return {
            stage: {name: number(getattr(parts, name)) for name in (*MEMORY_LABELS, "total")}
            for stage, parts in held.items()
        }

    def time_seconds(self) -> dict[str, float]:
        return {name: number(seconds) for name, seconds in self.breakdown.seconds.items()}

    def stage_seconds(self) -> dict[str, float]:
        """Of one micro batch, forward and backward, on each kind of stage."""
        return {stage: number(getattr(self.breakdown.predicted.time, f"{stage}_stage")) for stage in self.stages}

    def pipeline(self, wanted: int | None = None) -> tuple[list[Span], int]:
        """The spans of a few micro batches, and how many; interleaved ones come in rounds of as many as stages."""
        layout, stage_seconds = self.job.layout, self.stage_seconds()
        drawn = min(wanted or layout.pp + 4, self.job.micro_batches)
        if layout.schedule == "interleaved":
            drawn = max(1, drawn // layout.pp) * layout.pp
        middle = stage_seconds.get("middle", 0.0)
        seconds = [stage_seconds["first"], *[middle] * (layout.pp - 2), stage_seconds.get("last", 0.0)][: layout.pp]
        share = 1 / 4 if layout.recompute == "full" else 1 / 3  # backward is two forwards, and one more recomputed
        forward, backward = [s * share for s in seconds], [s * (1 - share) for s in seconds]
        return timeline(layout.schedule, forward, backward, drawn, layout.virtual_stages), drawn


def explain(job: Job) -> Explanation:
    """On the Job's own cluster with its own trainer; the same seconds and memory as `cost.predict.predict_job`."""
    asked = columns_of([job]), job.cluster, job.trainer
    return Explanation(job, step_breakdown(*asked), interval(*asked))


def number(value: Any) -> float:
    return float(np.ravel(value)[0])
