"""TrainerProfile: how a trainer executes a layout; the same layout has another cost in each."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.bounds import QuantityOrZero, Width, ZeroStage
from trimaran.spec.cluster import Precision

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Recompute = Literal["none", "selective", "full"]
Formula = Literal["model", "model-causal", "hardware", "bigscience-exact", "bigscience-approx", "6n", "6n-attention"]
Optimizer = Literal["adam", "fused-adam", "adam-8bit"]


class TrainerProfile(Spec):
    name: str
    attention: Literal["naive", "fused-softmax", "flash"]
    gradient_bytes: dict[Precision, Literal[2, 4]] = Field(
        description="Bytes per gradient element while it accumulates, per dtype it trains in."
    )
    accumulation_bytes: QuantityOrZero = Field(
        0.0, description="Bytes moved per parameter to accumulate the gradients of one micro batch."
    )
    update_bytes: dict[Optimizer, QuantityOrZero] = Field(
        default_factory=dict,
        description="Bytes an optimizer moves per parameter; those of a fused Adam where not stated.",
    )
    master_bytes: Literal[0, 4] = Field(4, description="Bytes of the master copy of each weight.")
    sharded_extra_bytes: QuantityOrZero = Field(
        0.0, description="Bytes per parameter that ZeRO shards in addition to master weights and moments."
    )
    stage_buffers: QuantityOrZero = Field(
        0.0, description="Activations kept per stage and micro batch in flight, beside those of the layers."
    )
    buffers_gib: QuantityOrZero = Field(0.0, description="Fixed buffers: reduction buckets, all-gathered weights.")
    exact_memory: bool = Field(
        False, description="Whether its tensors are known one by one (cost.engine_memory), not by published formulas."
    )
    compiles: bool = Field(
        False, description="Whether it compiles its layers on a GPU, without tensor parallelism or zero-bubble."
    )
    schedules: tuple[Schedule, ...] = Field(min_length=1)
    precisions: tuple[Precision, ...] = Field(min_length=1)
    fp8_multiple: Width = Field(1, description="Every dimension of an fp8 GEMM must be a multiple of this.")
    optimizers: tuple[Optimizer, ...] = Field(min_length=1)
    recompute: tuple[Recompute, ...] = Field(min_length=1)
    sequence_parallel: bool = Field(True, description="Whether it can shard norms and dropout along the sequence.")
    zero_stages: tuple[ZeroStage, ...] = Field(min_length=1, description="ZeRO stages offered without a pipeline.")
    zero_stages_with_pipeline: tuple[ZeroStage, ...] = Field(min_length=1)
    zero_gradients_with_pipeline: bool = Field(
        description="Whether ZeRO 2 and 3 shard gradients with a pipeline; if not, they act as stage 1 there."
    )
    ties_embeddings_across_stages: bool = True
    fewer_micro_batches_than_stages: bool = Field(
        description="Whether 1F1B can run with fewer micro batches than stages."
    )
    interleaved_micro_batches: Literal["multiple-of-stages", "even-rounds"] = "multiple-of-stages"
    overlaps_data_parallel: bool = Field(description="Whether the gradient reduction overlaps with the backward pass.")
    prints: Formula = Field(description="Name of the FLOPs formula behind the TFLOPs this trainer prints.")
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_gradients(self) -> Self:
        for precision in self.precisions:
            if precision not in self.gradient_bytes:
                raise ValueError(f"it trains in {precision}, but gradient_bytes has no {precision}; add it there.")
        return self
