"""Explained: where the memory of each stage and the time of a step of one Job go, and when each stage does what."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trimaran.cost.columns import columns_of
from trimaran.cost.predict import Interval, interval
from trimaran.planner.parts import PARTS, Parts, parts_of
from trimaran.planner.timeline import Span, timeline
from trimaran.spec import Job

STAGES = ("first", "middle", "last")
MEMORY = {
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
class Explained:
    job: Job
    parts: Parts
    interval: Interval

    @property
    def stages(self) -> tuple[str, ...]:
        """The kinds of stage that this pipeline has."""
        return {1: ("first",), 2: ("first", "last")}.get(self.job.layout.pp, STAGES)

    @property
    def seconds(self) -> float:
        return number(self.parts.predicted.seconds)

    @property
    def fits(self) -> bool:
        return bool(self.parts.predicted.fits[0])

    @property
    def bubble(self) -> float:
        return number(self.parts.predicted.time.bubble)

    def memory_bytes(self) -> dict[str, dict[str, float]]:
        """By kind of stage and part, and in total."""
        held = {stage: getattr(self.parts.predicted.memory, stage) for stage in self.stages}
        return {
            stage: {name: number(getattr(parts, name)) for name in (*MEMORY, "total")} for stage, parts in held.items()
        }

    def time_seconds(self) -> dict[str, float]:
        return {name: number(getattr(self.parts, name)) for name in PARTS}

    def stage_seconds(self) -> dict[str, float]:
        """Of one micro batch, forward and backward, on each kind of stage."""
        return {stage: number(getattr(self.parts.predicted.time, f"{stage}_stage")) for stage in self.stages}

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


def explained(job: Job) -> Explained:
    columns = columns_of([job])
    return Explained(job, parts_of(columns, job.cluster, job.trainer), interval(columns, job.cluster, job.trainer))


def number(value: Any) -> float:
    return float(np.ravel(value)[0])
