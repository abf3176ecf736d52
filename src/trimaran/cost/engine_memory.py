"""Bytes of our own engine, tensor by tensor: what `engine` keeps, and makes for a moment, in a training step.

Checked against whole steps on fake tensors (`trimaran memory`, tests/engine/test_memory.py), and what a compiler
changes on a GPU against an H200 (benchmarks/gpu_memory.py). Everything is a column.
Letters as in the papers: t tokens of a micro batch, h hidden, f width of the MLP, V rows of the vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trimaran.cost.columns import COMPUTE_BYTES, STATE_BYTES, Columns
from trimaran.cost.stages import layer_parameters, stage_layer_counts, stage_parameters
from trimaran.spec.own_engine import loss_chunk_tokens

FP32 = 4
PRODUCT_BYTES = {"fp8": 1}  # of a number that goes into a layer's product, where that is not the compute precision
LIBRARY_BYTES = 2**27  # on a GPU: what cuBLAS and cuDNN take for themselves; seen on an H200


@dataclass(frozen=True)
class EngineParts:
    """Of one device, at the fullest moment of a step."""

    weights: Any
    gradients: Any
    optimizer: Any  # with the fp32 originals of the weights
    activations: Any
    working: Any
    logits: Any
    buffers: Any  # the libraries' own; of the optimizer's step too, where that is the fullest moment


@dataclass(frozen=True)
class Place:
    """A kind of stage, as the moments of a step ask about it. Parameters are numbers of this rank, not bytes."""

    stage: str  # first, middle or last
    pending: Any  # micro batches whose weight gradients a zero bubble puts off
    flying: Any  # micro batches it holds at once
    compiled: Any  # see cost.compiled
    alone: Any
    sharded: Any
    has_first: Any
    has_last: Any
    tied: Any  # an embedding that is the head, on one stage
    parameters: Any
    layer: Any
    vocabulary: Any
    ends: Any  # what belongs to no block
    compute: int
    width: Any  # bytes of a gradient
    never_full: Any  # no forward pass follows the first backward pass


def place_of(c: Columns, stage: str, compiled: Any, depth: Any) -> Place:
    alone, tied, compute = c.pp == 1, np.asarray(c.tied, bool), COMPUTE_BYTES[c.precision]
    has_first, has_last = (stage == "first") | alone, (stage == "last") | alone
    vocabulary = c.vocab_rows * c.hidden / c.tp
    flying = in_flight(c, depth)
    return Place(
        stage=stage,
        pending=np.where(c.schedule == 3, c.pp - depth, 0),
        flying=flying,
        compiled=compiled,
        alone=alone,
        sharded=(c.zero > 0) & (c.dp > 1),
        has_first=has_first,
        has_last=has_last,
        tied=tied & alone,
        parameters=stage_parameters(c, stage),
        layer=layer_parameters(c),
        vocabulary=vocabulary,
        ends=(has_first | has_last) * vocabulary * np.where(alone & ~tied, 2, 1),
        compute=compute,
        width=np.where(as_they_come(c, compiled), compute, FP32),
        never_full=flying >= c.micro_batches,
    )


def engine_parts(c: Columns, stage: str, on_gpu: bool, compiled: Any, depth: Any = None) -> EngineParts:
    """`stage`: first, middle or last. `depth`: stages from this one to the last, where it is not the stage's usual."""
    if depth is None:
        depth = {"first": c.pp, "middle": np.maximum(c.pp - 1, 1), "last": np.ones_like(c.pp)}[stage]
    p = place_of(c, stage, compiled, depth)
    shard = np.where(p.sharded, c.dp, 1)
    # ZeRO 3 without a pipeline holds the block in use and what belongs to no block.
    weights = p.compute * np.where(p.sharded & (c.zero == 3) & p.alone, p.layer + p.ends, p.parameters)
    originals = np.where(p.sharded | (p.compute != FP32), FP32, 0)
    optimizer = p.parameters * (STATE_BYTES[c.optimizer] + originals) / shard
    gradients = p.parameters * p.width / np.where(p.sharded & (c.zero >= 2) & p.alone, shard, 1)
    beside = beside_update(c, p, weights, on_gpu)

    micro = kept(c, stage, compiled)
    activations = p.flying * micro + bias_bytes(c)
    in_layer = layer_working(c, p.sharded, p.layer, compiled)
    working, loss = backward_working(c, p, micro, in_layer), loss_working(c, p)
    # ZeRO 3 under a pipeline has given the blocks up when the loss comes, and gathers them one after another again.
    given_up = np.where(p.sharded & (c.zero == 3) & ~p.alone, (p.parameters - p.ends) * p.compute, 0.0)
    at_loss = loss - given_up > working
    weights = weights - np.where(at_loss, given_up, 0.0)
    working, logits = np.where(at_loss, 0.0, working), np.where(at_loss, loss, 0.0)
    others = np.where(c.schedule == 0, np.maximum(p.flying, 1) - 1, p.pending)
    waiting = p.has_last * others * (whole(c) + p.vocabulary * p.compute)

    # Gradients are made by the first backward pass, and where no forward pass follows it, in the activations' place.
    early = np.where(p.never_full, 0.0, gradients)
    busy = early + activations + working + logits + waiting
    made = last_made(c, p, micro, in_layer)
    after = np.where(p.never_full, gradients + activations - micro + made + waiting, 0.0)
    later, updates = after > busy, gradients + beside > np.maximum(busy, after)

    def then(at_busy: Any, at_after: Any, at_update: Any) -> Any:
        return np.where(updates, at_update, np.where(later, at_after, at_busy))

    return EngineParts(
        weights=weights,
        gradients=then(early, gradients, gradients),
        optimizer=optimizer,
        activations=then(activations, activations - micro, 0.0),
        working=then(working, made, 0.0),
        logits=then(logits + waiting, waiting, 0.0),
        buffers=then(0.0, 0.0, beside) + on_gpu * LIBRARY_BYTES,
    )


def beside_update(c: Columns, p: Place, weights: Any, on_gpu: bool) -> Any:
    """Beside states and gradients, when the optimizer works. Plain Adam goes through the tensors one by one, and takes
    roots of its second moments; with 8 bits it unpacks both moments, and where that is not compiled, packs them by
    64-bit numbers. FSDP2 has given the gathered weights up by then; but where it reduces each micro batch's gradients,
    those that belong to no block come last."""
    largest = np.maximum((p.has_first | p.has_last) * p.vocabulary, (c.matrices - 1) * c.ffn * c.hidden / c.tp)
    of_one = {"adam": 2 * FP32, "fused-adam": 0, "adam-8bit": 2 * FP32 if on_gpu else 6 * FP32}[c.optimizer]
    reduction = p.ends * (p.compute + FP32) + p.layer * FP32 - np.where(c.zero == 3, weights, 0.0)
    return np.where(p.sharded, np.where((c.zero >= 2) & p.alone, reduction, 0.0), largest * of_one)


def backward_working(c: Columns, p: Place, micro: Any, in_layer: Any) -> Any:
    """Beside the activations, while a backward pass goes through a layer."""
    # The head's gradient is there from the loss on; a tied one waits for the embedding's.
    head = np.where(p.tied, p.compute, np.where(p.never_full, p.width, 0)) * p.vocabulary
    # The last layer's output is gone when the final norm's gradient is made. In fp8 a norm's result is still there in
    # its place, as it was before it was rounded.
    gone = 0.0 if c.precision == "fp8" else p.has_last * boundary(c)
    working = in_layer - gone + np.where(p.has_last & ~p.sharded, head, 0.0)
    # The embedding's gradient comes when its micro batch is done with everything else.
    embedding = p.vocabulary * p.compute * np.where(p.sharded, 1, 2) - micro
    working = np.maximum(working, p.has_first * embedding)
    put_off = (p.pending + 1) * stage_layers(c, p.stage) * layer_put_off(c)
    working = working + np.where(p.pending > 0, put_off + p.sharded * p.layer * p.compute, 0.0)
    return working + p.has_last * p.sharded * p.vocabulary * p.compute  # the head's waits for the whole block


def loss_working(c: Columns, p: Place) -> Any:
    """Beside the activations, while the loss is computed."""
    put_off = p.pending * stage_layers(c, p.stage) * layer_put_off(c)
    return p.has_last * (loss_bytes(c, p.compiled) + whole(c) + put_off)


def last_made(c: Columns, p: Place, micro: Any, in_layer: Any) -> Any:
    """Beside the other gradients, when the last ones are made: the embedding's, or the first layer's with what it works
    with. Of a first micro batch there is none of the embedding then, or of a tied one the head's, as it came."""
    embedding = p.has_first * p.vocabulary * np.where(p.tied, p.width - p.compute, p.width) * (c.micro_batches == 1)
    of_layer = micro / np.maximum(stage_layers(c, p.stage), 1) + in_layer - p.layer * p.width - embedding
    return np.maximum(p.has_first * p.vocabulary * p.compute, np.where(p.sharded, 0.0, of_layer))


def as_they_come(c: Columns, compiled: Any) -> Any:
    """Where gradients stay in the precision they are computed in: nothing is added to them, and the optimizer, which
    is compiled too, takes them so (engine.kernels.fused_adamw)."""
    return compiled & (c.dp * c.tp * c.pp == 1) & (c.micro_batches == 1) & (c.optimizer == "fused-adam")


def stage_layers(c: Columns, stage: str) -> Any:
    return dict(zip(("first", "middle", "last"), stage_layer_counts(c), strict=True))[stage]


def whole(c: Columns) -> Any:
    """A hidden activation of all tokens."""
    return c.tokens * c.hidden * COMPUTE_BYTES[c.precision]


def boundary(c: Columns) -> Any:
    """What lies between layers."""
    return whole(c) / np.where(c.sequence_parallel, c.tp, 1)


def in_flight(c: Columns, depth: Any) -> Any:
    """Micro batches, of all layers of the device, that a stage holds at once."""
    # A zero bubble keeps activations until the weights' gradients are made. Interleaved: chunks that go forward
    # before the first goes backward, each 1/virtual of the device's layers.
    chunks = 2 * (depth - 1) + (c.virtual - 1) * c.pp + 1
    held = np.where(c.schedule == 2, chunks / c.virtual, np.where(c.schedule == 3, c.pp, depth))
    return np.minimum(np.where(c.schedule == 0, c.micro_batches, held), c.micro_batches)


def kept(c: Columns, stage: str, compiled: Any) -> Any:
    """By one micro batch on one device between its forward and its backward pass."""
    per_layer = np.where(c.recompute == 2, boundary(c), layer_kept(c, c.recompute == 1, compiled))
    # The output, kept for the next stage or the final norm; an embedding's norm keeps its input.
    chunks = np.where(c.schedule == 2, c.virtual, 1)
    beside = chunks + ((stage == "first") | (c.pp == 1)) * c.embedding_norm
    return stage_layers(c, stage) * per_layer + beside * boundary(c)


def layer_kept(c: Columns, selective: Any, compiled: Any) -> Any:
    """Inputs and outputs of both norms; queries, keys, values and the attention's result; inside the MLP its product
    and the activation of it, or with a gate both of these, the opened gate and the result. In fp8 what goes into a
    product is kept as 8-bit numbers; the attention keeps its result beside them.

    A compiler makes some of it again: the attention's result where the attention itself is repeated, an opened gate
    but in 8 bits, and there all but the norms' results. It keeps something too: the rows of the weights from which
    query, key and value come apart, or of one matrix the 8-bit numbers."""
    compute, given = COMPUTE_BYTES[c.precision], PRODUCT_BYTES.get(c.precision, COMPUTE_BYTES[c.precision])
    eight_bits = given != compute
    grouped = c.kv_heads < c.heads
    # Of queries and keys, turned or repeated for the attention; a compiler keeps the turned ones instead.
    copies = np.where(c.rotary, np.where(compiled, 0, c.hidden + c.kv_width), grouped * c.hidden)
    result = np.where(selective | (not eight_bits), 0, c.hidden)
    attention = (c.hidden + 2 * c.kv_width + np.where(selective, 0, copies) + result) * compute
    attention = attention + np.where(compiled & (selective | eight_bits), 0, c.hidden * given)
    inside = np.where(c.matrices == 3, np.where(compiled & (not eight_bits), 2, 3), 1)
    mlp = c.ffn * (inside * compute + np.where(compiled & eight_bits, 0, given))
    sums = np.where(selective, 0, c.heads) * FP32  # of the softmax
    apart = np.where(selective, 0, (c.hidden + 2 * c.kv_width) * c.hidden * compute)
    matrices = np.where(compiled, c.hidden * c.ffn * given if eight_bits else apart, 0)
    return (2 + 2 * given / compute) * boundary(c) + c.tokens / c.tp * (attention + mlp + sums) + matrices


def layer_put_off(c: Columns) -> Any:
    """Gradients of a layer's products, kept until a zero-bubble schedule makes the weights' gradients of them."""
    inside = c.ffn * np.where(c.matrices == 3, 2, 1) + c.hidden + 2 * c.kv_width
    return 3 * boundary(c) + c.tokens / c.tp * inside * COMPUTE_BYTES[c.precision]


def layer_working(c: Columns, sharded: Any, layer: Any, compiled: Any) -> Any:
    """Made by the backward pass of a layer, less what it has given up by then: at the MLP's second matrix, or, where
    gradients wait for the whole block, at the end of it. Where each block reduces its own, the buffer of the block
    before is still there; where weights are gathered block by block, so is the next one's."""
    compute = COMPUTE_BYTES[c.precision]
    gradient = boundary(c) + np.where(np.logical_and(c.sequence_parallel, c.tp > 1), whole(c), 0.0)
    # Of a gate and of what it lets through; a compiler puts one gradient in the place of what it was computed from.
    both = (c.matrices == 3) & (np.logical_not(compiled) | (c.precision == "fp8"))
    inside = c.tokens * c.ffn / c.tp * compute * np.where(both, 2, 1)
    matrix = c.hidden * c.ffn / c.tp * compute
    again = np.where(c.recompute == 2, layer_kept(c, False, compiled) - boundary(c), 0.0)
    middle = gradient + again + np.maximum(inside + matrix + rounded_bytes(c), scaled_bytes(c, compiled))
    reduces = sharded & (c.zero >= 2) & (c.pp == 1)
    own = np.where(c.recompute == 2, boundary(c), layer_kept(c, c.recompute == 1, compiled))
    buffer = np.where(reduces, layer * FP32, 0.0)
    end = boundary(c) + layer * compute + buffer - own
    gathers = np.where(reduces & (c.zero == 3), layer * compute, 0.0)
    return gathers + np.where(sharded, np.maximum(np.maximum(middle, middle + buffer - own), end), middle)


def rounded_bytes(c: Columns) -> Any:
    """Of fp8's products at the MLP's second matrix: the gradient in 8 bits, and it and the input transposed."""
    return (c.precision == "fp8") * c.tokens * (2 * c.hidden + c.ffn / c.tp)


def scaled_bytes(c: Columns, compiled: Any) -> Any:
    """There too, where fp8's forward pass is repeated: the input before it is scaled, and before it is rounded.
    Compiled it takes 3 bytes a hidden number more by the scales, as would a norm's result before and after that."""
    repeats = (c.precision == "fp8") & (c.recompute == 2)
    inputs = 2 * c.tokens * c.ffn / c.tp * COMPUTE_BYTES[c.precision]
    return repeats * (inputs + compiled * 3 * c.tokens * c.hidden)


def bias_bytes(c: Columns) -> Any:
    """The mask with ALiBi's bias: one for all micro batches."""
    return c.bias_heads / c.tp * c.seq**2 * COMPUTE_BYTES[c.precision]


def loss_bytes(c: Columns, compiled: Any) -> Any:
    """Logits of one chunk of tokens, and the gradients that the loss makes at once. Compiled, it needs no fp32 ones."""
    compute = COMPUTE_BYTES[c.precision]
    rows = c.vocab_rows / c.tp
    chunk = loss_chunk_tokens(rows)
    logits = np.minimum(chunk, c.tokens) * rows
    matrix = rows * c.hidden
    summed = np.where(chunk < c.tokens, matrix * FP32, 0.0)
    first = logits * np.where(compiled, 2 * compute, FP32 + (compute if compute != FP32 else 0))
    return whole(c) + summed + np.maximum(first, logits * compute + matrix * compute)
