"""Where the seconds of a step go, along the slowest stage of the pipeline, and which part limits a layout."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from trimaran.cost.columns import Columns
from trimaran.cost.predict import Prediction, predict
from trimaran.cost.stages import stage_layer_counts
from trimaran.cost.time import step_time
from trimaran.spec import Cluster, TrainerProfile

NOTABLE = 0.10  # of a step: what is less does not limit it

MEANING = {
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


@dataclass(frozen=True)
class Parts:
    """Seconds per step, column by column; they sum to the whole step."""

    compute: Any
    recompute: Any
    tensor_parallel: Any
    transfer: Any
    logits: Any
    bubble: Any
    reduction: Any
    optimizer: Any
    pressure: Any
    predicted: Prediction

    def shares(self) -> dict[str, Any]:
        return {name: getattr(self, name) / self.predicted.seconds for name in PARTS}

    def limiting(self, i: int) -> str:
        """The largest part beside useful compute where it is a tenth of the step or more, else compute."""
        shares = {name: float(np.atleast_1d(share)[i]) for name, share in self.shares().items()}
        name = max((name for name in shares if name != "compute"), key=lambda name: shares[name])
        name = name if shares[name] >= NOTABLE else "compute"
        return f"{MEANING[name]} {shares[name]:.0%}"


PARTS = tuple(f.name for f in fields(Parts) if f.name != "predicted")


def parts_of(rows: Columns, cluster: Cluster, trainer: TrainerProfile) -> Parts:
    predicted = predict(rows, cluster, trainer)
    time = predicted.time
    without = step_time(replace(rows, recompute=np.zeros_like(rows.recompute)), cluster, trainer)
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
    return Parts(
        **{name: value * scale for name, value in parts.items()},
        bubble=bubble * rows.slowdown,
        reduction=time.reduction * rows.slowdown,
        optimizer=time.optimizer * rows.slowdown,
        pressure=predicted.seconds - time.seconds,
        predicted=predicted,
    )
