"""Columns: what is asked of the cost functions, as a struct of arrays. One layout and a million are the same code.

Every field is a number or an array; they broadcast. Names are those of the spec, shortened where the field does so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from trimaran.spec import Job, Model
from trimaran.spec.cluster import Precision
from trimaran.spec.trainer import Optimizer

RECOMPUTE = {"none": 0, "selective": 1, "full": 2}
SCHEDULE = {"gpipe": 0, "1f1b": 1, "interleaved": 2, "zero-bubble": 3}
# Two moments of 4 bytes; or of 1 byte, with a scale of 4 bytes for each block.
BLOCK_8BIT = 256
STATE_BYTES: dict[Optimizer, float] = {"adam": 8.0, "fused-adam": 8.0, "adam-8bit": 2 * (1 + 4 / BLOCK_8BIT)}
COMPUTE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 2}  # of a weight or activation; fp8 only inside the GEMMs


@dataclass(frozen=True)
class Columns:
    # the model
    layers: Any
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
    recompute: Any  # see RECOMPUTE
    schedule: Any  # see SCHEDULE
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
    slowdown: Any = 1.0  # of a recorded condition, such as a network fault that was mended later

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


def of_model(model: Model) -> dict[str, Any]:
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


def of_jobs(jobs: Sequence[Job]) -> Columns:
    """One row a Job; they must agree in precision and optimizer."""
    (precision,) = {job.precision for job in jobs}
    (optimizer,) = {job.optimizer for job in jobs}
    rows = [
        {
            **of_model(job.model),
            "layers": _layers(job),
            "dp": job.layout.dp,
            "tp": job.layout.tp,
            "pp": job.layout.pp,
            "virtual": job.layout.virtual_stages,
            "mbs": job.layout.micro_batch,
            "gbs": job.batch.size,
            "zero": job.layout.zero,
            "recompute": RECOMPUTE[job.layout.recompute],
            "schedule": SCHEDULE[job.layout.schedule],
            "sequence_parallel": job.layout.sequence_parallel,
            "weighted": job.layout.split == "weighted",
            "devices_per_node": job.cluster.devices_per_node,
        }
        for job in jobs
    ]
    return of_rows(rows, precision, optimizer)


def _layers(job: Job) -> int:
    """An explicit split is as slow and as full as its largest stage: an even one of that many layers."""
    listed = not isinstance(job.layout.split, str)
    return max(job.stage_layers) * job.layout.stages if listed else job.model.layers


def of_rows(rows: Iterable[dict[str, Any]], precision: Precision, optimizer: Optimizer) -> Columns:
    """Columns from records with the same keys."""
    listed = list(rows)
    arrays = {name: np.array([float(row[name]) for row in listed]) for name in listed[0]}
    return Columns(**arrays, precision=precision, optimizer=optimizer)
