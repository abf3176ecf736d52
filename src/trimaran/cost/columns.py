"""Columns: what is asked of the cost functions, as a struct of arrays. One layout and a million are the same code.

Every field is a number or an array; they broadcast. Names are those of the spec, shortened where the field does so.
`columns_of` is the one way from Jobs to Columns; the planner fills the same fields for every candidate at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from trimaran.spec import Cluster, Job, Model, TrainerProfile
from trimaran.spec.cluster import Precision
from trimaran.spec.own_engine import BLOCK_8BIT, layers_compile
from trimaran.spec.trainer import Optimizer, Recompute, Schedule

Rows = npt.NDArray[np.int64]


class RecomputeCode(IntEnum):
    NONE = 0
    SELECTIVE = 1
    FULL = 2


class ScheduleCode(IntEnum):
    GPIPE = 0
    ONE_F_ONE_B = 1
    INTERLEAVED = 2
    ZERO_BUBBLE = 3


# Both in the order of the spec's names.
RECOMPUTE: dict[Recompute, RecomputeCode] = dict(zip(get_args(Recompute), RecomputeCode, strict=True))
SCHEDULE: dict[Schedule, ScheduleCode] = dict(zip(get_args(Schedule), ScheduleCode, strict=True))
# Two moments of 4 bytes; or of 1 byte, with a scale of 4 bytes for each block.
STATE_BYTES: dict[Optimizer, float] = {"adam": 8.0, "fused-adam": 8.0, "adam-8bit": 2 * (1 + 4 / BLOCK_8BIT)}
COMPUTE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 2}  # of a weight or activation; fp8 only inside the GEMMs


@dataclass(frozen=True)
class Columns:
    # the model
    layers: Any  # as costed: see `costed_layers`
    hidden: Any
    ffn: Any
    heads: Any
    kv_heads: Any
    vocab: Any
    seq: Any
    matrices: Any  # of the MLP: 2, or 3 with a gate
    tied: Any
    # the layout
    dp: Any
    tp: Any
    pp: Any
    virtual: Any
    mbs: Any
    gbs: Any
    zero: Any
    recompute: Any  # RecomputeCode
    schedule: Any  # ScheduleCode
    sequence_parallel: Any
    weighted: Any  # embedding and head count as layers in the split
    # what runs it
    devices_per_node: Any
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    # what only our engine's memory asks for
    rotary: Any = False
    embedding_norm: Any = False
    bias_heads: Any = 0.0  # of an attention mask that is added to the scores: ALiBi has one for each head
    slowdown: Any = 1.0  # of a recorded condition, such as a network fault that was fixed later

    @property
    def tokens(self) -> Any:
        """Of one micro batch."""
        return self.mbs * self.seq

    @property
    def micro_batches(self) -> Any:
        return self.gbs / (self.dp * self.mbs)

    @property
    def vocab_rows(self) -> Any:
        return np.ceil(self.vocab / (128 * self.tp)) * (128 * self.tp)

    @property
    def kv_width(self) -> Any:
        return self.hidden / self.heads * self.kv_heads

    @property
    def devices(self) -> Any:
        return self.dp * self.tp * self.pp

    def take(self, index: Any) -> "Columns":
        """Some of the rows: arrays are indexed, numbers stay."""
        taken = {f.name: getattr(self, f.name) for f in fields(self)}
        return Columns(**{k: v[index] if isinstance(v, np.ndarray) and v.ndim else v for k, v in taken.items()})


def columns_of(jobs: Sequence[Job]) -> Columns:
    """One row per Job; they must agree in precision and optimizer."""
    (precision,) = {job.precision for job in jobs}
    (optimizer,) = {job.optimizer for job in jobs}
    rows = [_row(job) for job in jobs]
    arrays = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    return Columns(**arrays, precision=precision, optimizer=optimizer)


def columns_by_format(jobs: Sequence[Job]) -> list[tuple[Rows, Columns]]:
    """Columns for each precision and optimizer among the Jobs, with the places of their rows in the given order."""
    groups: dict[tuple[Precision, Optimizer], list[int]] = {}
    for i, job in enumerate(jobs):
        groups.setdefault((job.precision, job.optimizer), []).append(i)
    return [(np.array(places), columns_of([jobs[i] for i in places])) for places in groups.values()]


def _row(job: Job) -> dict[str, Any]:
    layout = job.layout
    return {
        **model_columns(job.model),
        "layers": costed_layers(job),
        "dp": layout.dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "virtual": layout.virtual_stages,
        "mbs": layout.micro_batch,
        "gbs": job.batch.size,
        "zero": layout.zero,
        "recompute": RECOMPUTE[layout.recompute],
        "schedule": SCHEDULE[layout.schedule],
        "sequence_parallel": layout.sequence_parallel,
        "weighted": layout.split == "weighted",
        "devices_per_node": job.cluster.devices_per_node,
        "slowdown": lasting_slowdown(job.cluster),
    }


def model_columns(model: Model) -> dict[str, Any]:
    """The model's fields, as keywords for Columns."""
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "ffn": model.ffn_hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "vocab": model.padded_vocab or model.vocab,
        "seq": model.seq_len,
        "matrices": 3 if model.mlp == "swiglu" else 2,
        "tied": model.tied_embeddings,
        "rotary": model.position == "rotary",
        "embedding_norm": model.embedding_norm,
        "bias_heads": model.heads if model.position == "alibi" else 0,
    }


def costed_layers(job: Job) -> int:
    """A split is as slow and as full as its largest stage: the layers of a model that fills every stage so."""
    layout, layers = job.layout, job.model.layers
    if layout.split == "even" or layout.pp == 1:
        return layers
    if layout.split == "weighted":
        return costed_weighted_layers(layers, layout.stages)
    return max(layout.split) * layout.stages


def costed_weighted_layers(layers: int, stages: int) -> int:
    """Of a weighted split, in which embedding and head count as a layer each."""
    return -(-(layers + 2) // stages) * stages - 2


def is_compiled(c: Columns, cluster: Cluster, trainer: TrainerProfile) -> Any:
    """Where a compiler fuses the kernels of a layer, which changes the bytes it keeps and moves."""
    zero_bubble = c.schedule == ScheduleCode.ZERO_BUBBLE
    return (trainer.compiles and cluster.device.is_gpu) & layers_compile(c.tp, c.pp, zero_bubble)


def lasting_slowdown(cluster: Cluster) -> float:
    """Of the recorded condition that still holds, if any."""
    return next((condition.slowdown for condition in cluster.conditions if not condition.until), 1.0)
