"""What the first, a middle and the last pipeline stage hold: layers, parameters and bytes, as columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trimaran.cost.columns import Columns


@dataclass(frozen=True)
class StageMemory:
    """Bytes by part of one kind of stage."""

    weights: Any
    gradients: Any
    optimizer: Any  # with the fp32 master weights
    activations: Any  # of the micro batches in flight
    working: Any  # temporary tensors of a layer's backward pass
    logits: Any
    buffers: Any
    context: Any = 0.0
    slack: Any = 0.0

    @property
    def tensors(self) -> Any:
        tensors = self.weights + self.gradients + self.optimizer + self.activations + self.working + self.logits
        return tensors + self.buffers

    @property
    def total(self) -> Any:
        return self.tensors + self.context + self.slack


def stage_layer_counts(c: Columns) -> tuple[Any, Any, Any]:
    """Layers of the first, a middle and the last stage. Weighted: the ends give one layer up for embedding and head."""
    fewer = np.logical_and(c.weighted, c.pp > 1) * 1
    units = np.ceil((c.layers + 2 * fewer) / c.pp)  # an uneven split is as slow and as full as its largest stage
    return units - fewer, units, units - fewer


def stage_parameters(c: Columns, stage: str) -> Any:
    """On one tensor rank; norms and biases are left out (under 0.1 %)."""
    first, middle, last = stage_layer_counts(c)
    if stage == "middle":
        return middle * layer_parameters(c)
    both = np.where(c.pp == 1, np.where(c.tied, 1, 2), 1)
    return (first if stage == "first" else last) * layer_parameters(c) + both * c.vocab_rows * c.hidden / c.tp


def layer_parameters(c: Columns) -> Any:
    """The matrices of one layer, on one tensor rank."""
    return (2 * c.hidden**2 + 2 * c.hidden * c.kv_width + c.matrices * c.hidden * c.ffn) / c.tp
