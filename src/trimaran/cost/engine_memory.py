"""Bytes of our own engine, tensor by tensor: what `engine` holds at the fullest moment of a training step.

States are those of the ZeRO paper (weights, gradients, optimizer), activations those of "Reducing Activation
Recomputation" (arXiv 2205.05198). A step has four moments that can be the fullest, a function each: the loss, the
backward pass of a layer, the last gradients of a backward pass, and the optimizer's step.

Checked against whole steps on fake tensors (`trimaran memory`, tests/engine/test_memory.py), and what the compiler
changes on a GPU against an H200 (benchmarks/gpu_memory.py). Everything is a column.
"""

from dataclasses import fields
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
from trimaran.cost.stages import StageMemory, layer_parameters, stage_layer_counts, stage_parameters

LIBRARY_BYTES = 2**27  # on a GPU: workspaces of cuBLAS and cuDNN, as measured on an H200


def fullest_moment(stage: "EngineStage") -> StageMemory:
    fullest = layer_backward(stage)
    most = fullest.tensors
    others = ((loss(stage), True), (last_gradients(stage), stage.backward_only), (optimizer_step(stage), True))
    for moment, possible in others:
        total = moment.tensors
        fuller = possible & (total > most)
        parts = {f.name: (getattr(fullest, f.name), getattr(moment, f.name)) for f in fields(StageMemory)}
        fullest = StageMemory(
            **{name: one if one is two else np.where(fuller, two, one) for name, (one, two) in parts.items()}
        )
        most = np.where(fuller, total, most)
    return fullest


class EngineStage:
    """One kind of pipeline stage, and what the moments of a step ask of it. Parameters are counts of this rank."""

    def __init__(self, c: Columns, stage: str, on_gpu: bool, compiled: Any, stages_left: Any = None) -> None:
        """`stage`: first, middle or last. `compiled`: whether its layers are. `stages_left`: from this stage to the
        last, both counted, where that is not the usual of its kind."""
        self.c, self.on_gpu, self.compiled = c, on_gpu, compiled
        self.compute_bytes = COMPUTE_BYTES[c.precision]
        tied, zero_bubble = np.asarray(c.tied, bool), c.schedule == ScheduleCode.ZERO_BUBBLE
        self.is_only = c.pp == 1
        self.has_embedding = (stage == "first") | self.is_only
        self.has_head = (stage == "last") | self.is_only
        self.ties = tied & self.is_only  # its embedding is its head too
        self.sharded = (c.zero > 0) & (c.dp > 1)
        # ZeRO 2 and 3 without a pipeline reduce-scatter the gradients of each block in every micro batch.
        self.reduces_by_block = self.sharded & (c.zero >= 2) & self.is_only

        self.layers = dict(zip(("first", "middle", "last"), stage_layer_counts(c), strict=True))[stage]
        self.parameters = stage_parameters(c, stage)
        self.block_parameters = layer_parameters(c)
        self.vocab_parameters = c.vocab_rows * c.hidden / c.tp
        both = self.is_only & ~tied
        self.other_parameters = (self.has_embedding | self.has_head) * self.vocab_parameters * np.where(both, 2, 1)

        # Micro batches, of all layers of the device, whose activations it holds at once. A zero bubble keeps
        # activations until the weights' gradients are computed. Interleaved: chunks that go forward before the first
        # goes backward, each 1/virtual of the device's layers.
        usual_depth = {"first": c.pp, "middle": np.maximum(c.pp - 1, 1), "last": np.ones_like(c.pp)}[stage]
        depth = usual_depth if stages_left is None else stages_left
        chunks = 2 * (depth - 1) + (c.virtual - 1) * c.pp + 1
        held = np.where(zero_bubble, c.pp, depth)
        held = np.where(c.schedule == ScheduleCode.INTERLEAVED, chunks / c.virtual, held)
        held = np.where(c.schedule == ScheduleCode.GPIPE, c.micro_batches, held)
        self.in_flight = np.minimum(held, c.micro_batches)
        self.deferred = np.where(zero_bubble, c.pp - depth, 0)  # micro batches whose weight gradients come later
        self.backward_only = self.in_flight >= c.micro_batches  # no forward pass follows the first backward pass

        # Activations of one micro batch between its forward and its backward pass: of the blocks, the output, kept for
        # the next stage or the final norm, and the input of an embedding's norm.
        outputs = np.where(c.schedule == ScheduleCode.INTERLEAVED, c.virtual, 1)
        beside = outputs + self.has_embedding * c.embedding_norm
        self.kept = self.layers * block_kept_bytes(c, compiled) + beside * boundary_bytes(c)
        mask = c.bias_heads / c.tp * c.seq**2 * self.compute_bytes  # with ALiBi's bias, one for all micro batches
        self.activations = self.in_flight * self.kept + mask

        # Of one gradient: fp32, unless nothing is added to it and the fused optimizer takes it as computed.
        as_computed = compiled & (c.devices == 1) & (c.micro_batches == 1) & (c.optimizer == "fused-adam")
        self.gradient_bytes = np.where(as_computed, self.compute_bytes, FP32)
        self.states = self._states()
        # The first backward pass allocates them: where no forward pass follows, in the place of freed activations.
        self.early_gradients = np.where(self.backward_only, 0.0, self.states["gradients"])
        # Gradients that the loss computed at once, of micro batches whose backward pass comes later.
        waiting = np.where(c.schedule == ScheduleCode.GPIPE, np.maximum(self.in_flight, 1) - 1, self.deferred)
        loss_gradients = hidden_bytes(c) + self.vocab_parameters * self.compute_bytes
        self.waiting_loss_gradients = self.has_head * waiting * loss_gradients
        self.block_backward = block_backward_bytes(self)

    def _states(self) -> dict[str, Any]:
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


# The moments of a step.


def loss(s: EngineStage) -> StageMemory:
    """The last stage computes logits and their gradients. ZeRO 3 under a pipeline has freed the blocks' weights by
    then, and gathers them one after another again."""
    held = s.states | {"gradients": s.early_gradients, "activations": s.activations, "working": 0.0}
    freed = np.where(s.sharded & (s.c.zero == 3) & ~s.is_only, s.parameters - s.other_parameters, 0.0)
    deferred = s.deferred * s.layers * block_deferred_bytes(s.c)
    logits = s.has_head * (loss_bytes(s.c, s.compiled) + hidden_bytes(s.c) + deferred)
    held["weights"] = held["weights"] - freed * s.compute_bytes
    return StageMemory(**held, logits=logits + s.waiting_loss_gradients)


def layer_backward(s: EngineStage) -> StageMemory:
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
    return StageMemory(**held, working=working, logits=s.waiting_loss_gradients)


def last_gradients(s: EngineStage) -> StageMemory:
    """The end of a backward pass after which no forward pass comes: all gradients, beside the other micro batches'
    activations. Last are the embedding's, or the first layer's with what it works with. A first micro batch has none
    of the embedding then, or of a tied one the head's, as computed."""
    width = np.where(s.ties, s.gradient_bytes - s.compute_bytes, s.gradient_bytes)
    embedding = s.has_embedding * s.vocab_parameters * width * (s.c.micro_batches == 1)
    layer = s.kept / np.maximum(s.layers, 1) + s.block_backward - s.block_parameters * s.gradient_bytes - embedding
    working = np.maximum(s.has_embedding * s.vocab_parameters * s.compute_bytes, np.where(s.sharded, 0.0, layer))
    activations = s.activations - s.kept
    return StageMemory(**s.states, activations=activations, working=working, logits=s.waiting_loss_gradients)


def optimizer_step(s: EngineStage) -> StageMemory:
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
    return StageMemory(**held, activations=0.0, working=0.0, logits=0.0)


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
