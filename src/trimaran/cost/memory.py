"""Bytes on one device, for the first, a middle and the last stage: states, activations in flight, logits, reserves.

What is sharded how is the trainer's business (spec.TrainerProfile); what a device cannot use is the cluster's.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimaran.cost.columns import COMPUTE_BYTES, STATE_BYTES, Columns, RecomputeCode, ScheduleCode, is_compiled
from trimaran.cost.constants import Constants, constants_of
from trimaran.cost.engine_activations import boundary_bytes
from trimaran.cost.engine_memory import EngineStage, fullest_moment
from trimaran.cost.stages import StageMemory, stage_layer_counts, stage_parameters
from trimaran.spec import Cluster, TrainerProfile

GIB = 2**30
STAGES = ("first", "middle", "last")
LOGIT_BYTES = 10  # per logit: 2 of the GEMM, 4 each of its fp32 copy and its softmax, which becomes the gradient
FLASH_LOGIT_BYTES = 8  # with a chunked loss: the GEMM, and one fp32 chunk's worth of the rest
# Lost in partly used pages (spec.own_engine.PAGE_MIB), measured by benchmarks/gpu_pages.py. Most where an update needs
# whole tensors for a moment: measured of 8-bit Adam, assumed of the plain one.
PAGES_BYTES = {"adam": 200 * 2**20, "fused-adam": 130 * 2**20, "adam-8bit": 200 * 2**20}


@dataclass(frozen=True)
class PipelineMemory:
    """Of the three kinds of stage; with two stages the middle one does not count."""

    first: StageMemory
    middle: StageMemory
    last: StageMemory
    pp: Any

    @property
    def fullest_gib(self) -> Any:
        """As nvidia-smi would show it."""
        return self._fullest(self.first.total, self.middle.total, self.last.total)

    @property
    def needed_gib(self) -> Any:
        """What cannot be done without: a caching allocator gives its fragments back before it gives up."""
        return self._fullest(*(stage.total - stage.slack for stage in (self.first, self.middle, self.last)))

    def _fullest(self, first: Any, middle: Any, last: Any) -> Any:
        return np.maximum(np.maximum(first, np.where(self.pp > 2, middle, 0.0)), last) / GIB


def memory(c: Columns, cluster: Cluster, trainer: TrainerProfile, k: Constants | None = None) -> PipelineMemory:
    first, middle, last = (stage_memory(c, cluster, trainer, stage, k) for stage in STAGES)
    return PipelineMemory(first, middle, last, c.pp)


def stage_memory(
    c: Columns, cluster: Cluster, trainer: TrainerProfile, stage: str, k: Constants | None = None
) -> StageMemory:
    """`stage`: first, middle or last; with one stage, first is last too."""
    if trainer.exact_memory and trainer.attention == "flash":  # with another attention it is some other software
        return engine_memory(c, cluster, trainer, stage)
    parameters = stage_parameters(c, stage)
    compute = COMPUTE_BYTES[c.precision]
    gradient_shard = np.where((c.zero >= 2) & ((c.pp == 1) | trainer.zero_gradients_with_pipeline), c.dp, 1)
    weight_shard = np.where((c.zero == 3) & (c.pp == 1), c.dp, 1)
    master = trainer.master_bytes if c.precision != "fp32" else 0
    sharded = STATE_BYTES[c.optimizer] + master + trainer.sharded_extra_bytes
    weights = parameters * compute / weight_shard
    gradients = parameters * trainer.gradient_bytes[c.precision] / gradient_shard
    optimizer = parameters * sharded / np.where(c.zero >= 1, c.dp, 1)
    activations = activation_bytes(c, trainer, stage)
    working = np.where(c.recompute == RecomputeCode.FULL, layer_activation_bytes(c, trainer, RecomputeCode.NONE), 0.0)
    per_logit = FLASH_LOGIT_BYTES if trainer.attention == "flash" else LOGIT_BYTES
    has_logits = (stage == "last") | (c.pp == 1)
    logits = has_logits * c.tokens * c.vocab_rows / c.tp * per_logit
    k = k or constants_of(cluster)
    activations, working, logits = (part * k.activation_share for part in (activations, working, logits))
    return StageMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer * k.state_share,
        activations=activations,
        working=working,
        logits=logits,
        buffers=trainer.buffers_gib * k.buffer_share * GIB,
        context=context_bytes(c, cluster),
        slack=(activations + working + logits) * cluster.slack,
    )


def engine_memory(
    c: Columns, cluster: Cluster, trainer: TrainerProfile, stage: str, stages_left: Any = None
) -> StageMemory:
    """Of our own trainer, whose tensors are all known; the learned shares are of others. `stages_left`: from this one
    to the last, where it is not the usual of its kind."""
    compiled = is_compiled(c, cluster, trainer)
    held = fullest_moment(EngineStage(c, stage, cluster.device.is_gpu, compiled, stages_left))
    return replace(
        held,
        buffers=held.buffers + trainer.buffers_gib * GIB,
        context=engine_context_bytes(c, cluster),
        slack=(held.activations + held.working + held.logits) * cluster.slack,
    )


def context_bytes(c: Columns, cluster: Cluster) -> Any:
    """What no tensor gets. A single device needs no communicators."""
    return (cluster.context_gib + (c.dp * c.tp * c.pp > 1) * (cluster.communicator_gib or 0.0)) * GIB


def engine_context_bytes(c: Columns, cluster: Cluster) -> Any:
    """Beside our own trainer's tensors. Its GPU memory is mapped in pages (engine.parallel.world): those that are
    partly used, a step has some ten, cannot be given back."""
    return context_bytes(c, cluster) + cluster.device.is_gpu * PAGES_BYTES[c.optimizer]


def in_flight(c: Columns, stage: str) -> Any:
    """Micro batches whose activations a stage holds at once."""
    depth = {"first": c.pp, "middle": c.pp - 1, "last": np.ones_like(c.pp * 1.0)}[stage]
    interleaved = depth * (1 + (c.pp - 1) / (c.pp * c.virtual))
    depth = np.where(c.schedule == ScheduleCode.INTERLEAVED, interleaved, depth)
    return np.minimum(np.where(c.schedule == ScheduleCode.GPIPE, c.micro_batches, depth), c.micro_batches)


def activation_bytes(c: Columns, trainer: TrainerProfile, stage: str) -> Any:
    first, middle, last = stage_layer_counts(c)
    layers = {"first": first, "middle": middle, "last": last}[stage]
    all_kept, without_scores = (
        layer_activation_bytes(c, trainer, recompute) for recompute in (RecomputeCode.NONE, RecomputeCode.SELECTIVE)
    )
    per_layer = np.where(c.recompute == RecomputeCode.SELECTIVE, without_scores, all_kept)
    per_layer = np.where(c.recompute == RecomputeCode.FULL, boundary_bytes(c), per_layer)
    kept = layers * per_layer + np.where(c.pp > 1, trainer.stage_buffers * boundary_bytes(c), 0.0)
    return in_flight(c, stage) * kept


def layer_activation_bytes(c: Columns, trainer: TrainerProfile, recompute: RecomputeCode) -> Any:
    """What the backward pass of a layer needs (Korthikanti et al., arXiv 2205.05198): 34 bytes per token and hidden
    element, 10 of them on every tensor rank without sequence parallelism, and 5 per attention score unless these are
    recomputed or never stored."""
    width = COMPUTE_BYTES[c.precision] / 2
    mlp = 16 * (c.matrices - 1) * c.ffn / (4 * c.hidden)  # 19 bytes of a plain MLP: 16 scale with its width
    whole = np.where(c.sequence_parallel, 10 / c.tp, 10)
    linear = c.tokens * c.hidden * (whole + (8 + mlp) / c.tp)
    scores = (
        0.0
        if recompute == RecomputeCode.SELECTIVE or trainer.attention == "flash"
        else 5 * c.mbs * c.heads / c.tp * c.seq**2
    )
    return width * (linear + scores)
