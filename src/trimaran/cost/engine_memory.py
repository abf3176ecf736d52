"""Bytes of our own engine, tensor by tensor: what `engine` holds at the fullest moment of a training step.

States are those of the ZeRO paper (weights, gradients, optimizer), activations those of "Reducing Activation
Recomputation" (arXiv 2205.05198). A step has four moments that can be the fullest, a function each: the loss, the
backward pass of a layer, the last gradients of a backward pass, and the optimizer's step.

Checked against whole steps on fake tensors (`trimaran memory`, tests/engine/test_memory.py), and what the compiler
changes on a GPU against an H200 (benchmarks/gpu_memory.py). Everything is a column.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from trimaran.cost.columns import COMPUTE_BYTES, STATE_BYTES, Columns, RecomputeCode, ScheduleCode
from trimaran.cost.engine_activations import (
    FP32,
    block_activation_bytes,
    block_deferred_bytes,
    block_kept_bytes,
    boundary_bytes,
    fp8_gemm_bytes,
    fp8_recompute_bytes,
    hidden_bytes,
    loss_bytes,
)
from trimaran.cost.stages import layer_parameters, stage_layer_counts, stage_parameters

LIBRARY_BYTES = 2**27  # on a GPU: workspaces of cuBLAS and cuDNN, as measured on an H200


@dataclass(frozen=True)
class Moment:
    """Bytes of one device at some moment of a step."""

    weights: Any
    gradients: Any
    optimizer: Any  # with the fp32 master weights
    activations: Any  # of the micro batches in flight
    working: Any  # temporary tensors of a layer's backward pass
    logits: Any
    buffers: Any  # of libraries, and of the optimizer's step
    possible: Any = True  # whether the step has this moment

    @property
    def total(self) -> Any:
        states = self.weights + self.gradients + self.optimizer + self.buffers
        return states + (self.activations + self.working + self.logits)


PARTS = tuple(f.name for f in fields(Moment) if f.name != "possible")


def fullest_moment(stage: "EngineStage") -> Moment:
    fullest = layer_backward(stage)
    most = fullest.total
    for moment in (loss(stage), last_gradients(stage), optimizer_step(stage)):
        total = moment.total
        fuller = moment.possible & (total > most)
        parts = {name: (getattr(fullest, name), getattr(moment, name)) for name in PARTS}
        fullest = Moment(**{n: one if one is two else np.where(fuller, two, one) for n, (one, two) in parts.items()})
        most = np.where(fuller, total, most)
    return fullest


@dataclass(frozen=True)
class EngineStage:
    """One kind of pipeline stage, and what the moments of a step ask of it. Parameters are counts of this rank."""

    c: Columns
    stage: str  # first, middle or last
    on_gpu: bool
    compiled: Any  # whether its layers are
    stages_left: Any = None  # from this stage to the last, both counted, where that is not the usual of its kind

    @cached_property
    def depth(self) -> Any:
        if self.stages_left is not None:
            return self.stages_left
        pp = self.c.pp
        return {"first": pp, "middle": np.maximum(pp - 1, 1), "last": np.ones_like(pp)}[self.stage]

    @cached_property
    def is_only(self) -> Any:
        return self.c.pp == 1

    @cached_property
    def has_embedding(self) -> Any:
        return (self.stage == "first") | self.is_only

    @cached_property
    def has_head(self) -> Any:
        return (self.stage == "last") | self.is_only

    @cached_property
    def ties(self) -> Any:
        """Whether its embedding is its head too."""
        return np.asarray(self.c.tied, bool) & self.is_only

    @cached_property
    def sharded(self) -> Any:
        return (self.c.zero > 0) & (self.c.dp > 1)

    @cached_property
    def reduces_by_block(self) -> Any:
        """ZeRO 2 and 3 without a pipeline reduce-scatter the gradients of each block in every micro batch."""
        return self.sharded & (self.c.zero >= 2) & self.is_only

    @cached_property
    def layers(self) -> Any:
        return dict(zip(("first", "middle", "last"), stage_layer_counts(self.c), strict=True))[self.stage]

    @cached_property
    def parameters(self) -> Any:
        return stage_parameters(self.c, self.stage)

    @cached_property
    def block_parameters(self) -> Any:
        return layer_parameters(self.c)

    @cached_property
    def vocab_parameters(self) -> Any:
        return self.c.vocab_rows * self.c.hidden / self.c.tp

    @cached_property
    def other_parameters(self) -> Any:
        """Of no block: embedding and head."""
        both = self.is_only & ~np.asarray(self.c.tied, bool)
        return (self.has_embedding | self.has_head) * self.vocab_parameters * np.where(both, 2, 1)

    @cached_property
    def compute_bytes(self) -> int:
        return COMPUTE_BYTES[self.c.precision]

    @cached_property
    def gradient_bytes(self) -> Any:
        """Of one gradient: fp32, unless nothing is added to it and the fused optimizer takes it as computed."""
        c = self.c
        as_computed = self.compiled & (c.devices == 1) & (c.micro_batches == 1) & (c.optimizer == "fused-adam")
        return np.where(as_computed, self.compute_bytes, FP32)

    @cached_property
    def in_flight(self) -> Any:
        """Micro batches, of all layers of the device, whose activations a stage holds at once."""
        # A zero bubble keeps activations until the weights' gradients are computed. Interleaved: chunks that go
        # forward before the first goes backward, each 1/virtual of the device's layers.
        c, depth = self.c, self.depth
        chunks = 2 * (depth - 1) + (c.virtual - 1) * c.pp + 1
        held = np.where(c.schedule == ScheduleCode.ZERO_BUBBLE, c.pp, depth)
        held = np.where(c.schedule == ScheduleCode.INTERLEAVED, chunks / c.virtual, held)
        return np.minimum(np.where(c.schedule == ScheduleCode.GPIPE, c.micro_batches, held), c.micro_batches)

    @cached_property
    def deferred(self) -> Any:
        """Micro batches whose weight gradients a zero bubble computes later."""
        return np.where(self.c.schedule == ScheduleCode.ZERO_BUBBLE, self.c.pp - self.depth, 0)

    @cached_property
    def backward_only(self) -> Any:
        """No forward pass follows the first backward pass."""
        return self.in_flight >= self.c.micro_batches

    @cached_property
    def kept(self) -> Any:
        """Activations of one micro batch between its forward and its backward pass."""
        c = self.c
        # The output, kept for the next stage or the final norm; an embedding's norm keeps its input.
        chunks = np.where(c.schedule == ScheduleCode.INTERLEAVED, c.virtual, 1)
        beside = chunks + self.has_embedding * c.embedding_norm
        return self.layers * block_kept_bytes(c, self.compiled) + beside * boundary_bytes(c)

    @cached_property
    def activations(self) -> Any:
        """Of the micro batches in flight; the mask with ALiBi's bias is one for all of them."""
        mask = self.c.bias_heads / self.c.tp * self.c.seq**2 * self.compute_bytes
        return self.in_flight * self.kept + mask

    @cached_property
    def early_gradients(self) -> Any:
        """The first backward pass allocates them: where no forward pass follows, in the place of freed activations."""
        return np.where(self.backward_only, 0.0, self.states["gradients"])

    @cached_property
    def waiting_loss_gradients(self) -> Any:
        """Gradients that the loss computed at once, of micro batches whose backward pass comes later."""
        waiting = np.where(self.c.schedule == ScheduleCode.GPIPE, np.maximum(self.in_flight, 1) - 1, self.deferred)
        return self.has_head * waiting * (hidden_bytes(self.c) + self.vocab_parameters * self.compute_bytes)

    @cached_property
    def states(self) -> dict[str, Any]:
        """What a stage holds throughout, as in the ZeRO paper, and the libraries' workspaces."""
        shard = np.where(self.sharded, self.c.dp, 1)
        # ZeRO 3 without a pipeline holds the block in use and what belongs to no block.
        by_block = self.sharded & (self.c.zero == 3) & self.is_only
        held = np.where(by_block, self.block_parameters + self.other_parameters, self.parameters)
        master = np.where(self.sharded | (self.compute_bytes != FP32), FP32, 0)
        return {
            "weights": held * self.compute_bytes,
            "gradients": self.parameters * self.gradient_bytes / np.where(self.reduces_by_block, shard, 1),
            "optimizer": self.parameters * (STATE_BYTES[self.c.optimizer] + master) / shard,
            "buffers": self.on_gpu * LIBRARY_BYTES,
        }

    @cached_property
    def block_backward(self) -> Any:
        return block_backward_bytes(self)


# The moments of a step.


def loss(s: EngineStage) -> Moment:
    """The last stage computes logits and their gradients. ZeRO 3 under a pipeline has freed the blocks' weights by
    then, and gathers them one after another again."""
    held = s.states | {"gradients": s.early_gradients, "activations": s.activations, "working": 0.0}
    freed = np.where(s.sharded & (s.c.zero == 3) & ~s.is_only, s.parameters - s.other_parameters, 0.0)
    deferred = s.deferred * s.layers * block_deferred_bytes(s.c)
    logits = s.has_head * (loss_bytes(s.c, s.compiled) + hidden_bytes(s.c) + deferred)
    held["weights"] = held["weights"] - freed * s.compute_bytes
    return Moment(**held, logits=logits + s.waiting_loss_gradients)


def layer_backward(s: EngineStage) -> Moment:
    """A backward pass goes through a layer while other micro batches are in flight."""
    held = s.states | {"gradients": s.early_gradients, "activations": s.activations}
    # The head's gradient exists from the loss on; a tied one waits for the embedding's.
    head = np.where(s.ties, s.compute_bytes, np.where(s.backward_only, s.gradient_bytes, 0)) * s.vocab_parameters
    # The last layer's output is freed when the final norm's gradient is computed. In fp8 a norm's result is still in
    # its place, as it was before it was quantized.
    freed = 0.0 if s.c.precision == "fp8" else s.has_head * boundary_bytes(s.c)
    working = s.block_backward - freed + np.where(s.has_head & ~s.sharded, head, 0.0)
    # The embedding's gradient comes when its micro batch is done with everything else.
    embedding = s.vocab_parameters * s.compute_bytes * np.where(s.sharded, 1, 2) - s.kept
    working = np.maximum(working, s.has_embedding * embedding)
    deferred = (s.deferred + 1) * s.layers * block_deferred_bytes(s.c)
    working = working + np.where(s.deferred > 0, deferred + s.sharded * s.block_parameters * s.compute_bytes, 0.0)
    working = working + s.has_head * s.sharded * s.vocab_parameters * s.compute_bytes  # it waits for the whole block
    return Moment(**held, working=working, logits=s.waiting_loss_gradients)


def last_gradients(s: EngineStage) -> Moment:
    """The end of a backward pass after which no forward pass comes: all gradients, beside the other micro batches'
    activations. Last are the embedding's, or the first layer's with what it works with. A first micro batch has none
    of the embedding then, or of a tied one the head's, as computed."""
    width = np.where(s.ties, s.gradient_bytes - s.compute_bytes, s.gradient_bytes)
    embedding = s.has_embedding * s.vocab_parameters * width * (s.c.micro_batches == 1)
    layer = s.kept / np.maximum(s.layers, 1) + s.block_backward - s.block_parameters * s.gradient_bytes - embedding
    working = np.maximum(s.has_embedding * s.vocab_parameters * s.compute_bytes, np.where(s.sharded, 0.0, layer))
    return Moment(
        **s.states,
        activations=s.activations - s.kept,
        working=working,
        logits=s.waiting_loss_gradients,
        possible=s.backward_only,
    )


def optimizer_step(s: EngineStage) -> Moment:
    """Plain Adam goes through the tensors one by one, and takes roots of its second moments; with 8 bits it unpacks
    both moments, and where that is not compiled, packs them by 64-bit integers. FSDP2 has freed the gathered weights by
    then; but where it reduces each micro batch's gradients, those that belong to no block come last."""
    c, held = s.c, dict(s.states)
    largest = np.maximum(
        (s.has_embedding | s.has_head) * s.vocab_parameters, (c.matrices - 1) * c.ffn * c.hidden / c.tp
    )
    per_element = {"adam": 2 * FP32, "fused-adam": 0, "adam-8bit": 2 * FP32 if s.on_gpu else 6 * FP32}[c.optimizer]
    reduction = s.other_parameters * (s.compute_bytes + FP32) + s.block_parameters * FP32
    reduction = reduction - np.where(c.zero == 3, held["weights"], 0.0)
    update = np.where(s.sharded, np.where(s.reduces_by_block, reduction, 0.0), largest * per_element)
    held["buffers"] = held["buffers"] + update
    return Moment(**held, activations=0.0, working=0.0, logits=0.0)


def block_backward_bytes(s: EngineStage) -> Any:
    """Allocated by the backward pass of a block, less what it has freed by then: at the MLP's second matrix, or, where
    gradients wait for the whole block, at the end of it. Where each block reduces its own, the buffer of the block
    before still exists; where weights are gathered block by block, so do the next one's."""
    c, compute, boundary = s.c, s.compute_bytes, boundary_bytes(s.c)
    gathered = np.where(np.logical_and(c.sequence_parallel, c.tp > 1), hidden_bytes(c), 0.0)
    # Of a gate and of what it lets through; a compiler puts one gradient in the place of what it was computed from.
    both = (c.matrices == 3) & (np.logical_not(s.compiled) | (c.precision == "fp8"))
    inside = c.tokens * c.ffn / c.tp * compute * np.where(both, 2, 1)
    matrix = c.hidden * c.ffn / c.tp * compute
    recomputed = block_activation_bytes(c, False, s.compiled) - boundary
    recomputed = np.where(c.recompute == RecomputeCode.FULL, recomputed, 0.0)
    inputs = np.maximum(inside + matrix + fp8_gemm_bytes(c), fp8_recompute_bytes(c, s.compiled))
    at_second_matrix = boundary + gathered + recomputed + inputs
    buffer = np.where(s.reduces_by_block, s.block_parameters * FP32, 0.0)
    freed = block_kept_bytes(c, s.compiled)
    at_end = boundary + s.block_parameters * compute + buffer - freed
    whole_block = np.maximum(np.maximum(at_second_matrix, at_second_matrix + buffer - freed), at_end)
    next_weights = np.where(s.reduces_by_block & (c.zero == 3), s.block_parameters * compute, 0.0)
    return next_weights + np.where(s.sharded, whole_block, at_second_matrix)
