"""Setup: what is known about a measured run. A table row or a log seldom states everything; unknown stays None."""

from typing import TYPE_CHECKING

from pydantic import Field

from trimaran.spec.base import Spec
from trimaran.spec.bounds import (
    BatchSize,
    Devices,
    FfnWidth,
    Layers,
    QuantityOrZero,
    SequenceLength,
    Vocabulary,
    Width,
    ZeroStage,
)
from trimaran.spec.model import Model
from trimaran.spec.trainer import Recompute

if TYPE_CHECKING:
    from trimaran.spec.job import Job

HEAD_DIMS = range(128, 0, -8)  # the first that divides the hidden size, where no usable number of heads is stated


class Setup(Spec):
    framework: str | None = None
    device: str | None = None
    devices_per_node: Devices | None = None
    nodes: Devices | None = None
    devices: Devices | None = None
    size_label: str | None = Field(None, description="The model size as printed, such as '104B'; not always right.")
    layers: Layers | None = None
    hidden: Width | None = None
    ffn_hidden: FfnWidth | None = None
    heads: Width | None = None
    kv_heads: Width | None = None
    mlp: str | None = None
    seq_len: SequenceLength | None = None
    vocab: Vocabulary | None = None
    dp: Devices | None = None
    tp: Devices | None = None
    pp: Devices | None = None
    virtual_stages: Layers | None = None
    zero: ZeroStage | None = None
    mbs: BatchSize | None = None
    gbs: BatchSize | None = None
    recompute: Recompute | None = None
    sequence_parallel: bool | None = None
    precision: str | None = None
    optimizer: str | None = None
    freq_ghz: QuantityOrZero | None = None
    environment: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def of_job(cls, job: "Job") -> "Setup":
        same_names = {
            name: getattr(part, name)
            for part in (job.model, job.layout)
            for name in type(part).model_fields
            if name in cls.model_fields
        }
        return cls(
            **same_names,
            framework=job.trainer.name,
            device=job.cluster.device.name,
            devices_per_node=job.cluster.devices_per_node,
            nodes=job.cluster.nodes,
            devices=job.cluster.devices,
            mbs=job.layout.micro_batch,
            gbs=job.batch.size,
            precision=job.precision,
            optimizer=job.optimizer,
            environment=job.environment,
        )

    def to_model(self, vocab: int = 1, seq_len: int = 1) -> Model | None:
        """With the given vocabulary and length where it states none; or None where the shape is unknown. Unstated heads
        do not change parameters and FLOPs."""
        if self.layers is None or self.hidden is None:
            return None
        heads = self.heads
        if not heads or self.hidden % heads:
            heads = next((self.hidden // dim for dim in HEAD_DIMS if self.hidden % dim == 0), 1)
        gated = self.mlp == "swiglu"
        return Model(
            name=self.size_label or "unnamed",
            layers=self.layers,
            hidden=self.hidden,
            heads=heads,
            kv_heads=self.kv_heads if self.kv_heads and heads % self.kv_heads == 0 else heads,
            ffn_hidden=self.ffn_hidden or 4 * self.hidden,
            vocab=self.vocab or vocab,
            seq_len=self.seq_len or seq_len,
            mlp="swiglu" if gated else "gelu",
            tied_embeddings=not gated,
        )
