"""Activations of our own engine, by the names of "Reducing Activation Recomputation" (arXiv 2205.05198): what a block
keeps for its backward pass, what lies between blocks, and what the loss computes at once. Everything is a column."""

from typing import Any

import numpy as np

from trimaran.cost.columns import COMPUTE_BYTES, Columns, RecomputeCode
from trimaran.spec.own_engine import loss_chunk_tokens

FP32 = 4
GEMM_BYTES = {"fp8": 1}  # of an element that goes into a layer's GEMM, where that is not the compute precision


def hidden_bytes(c: Columns) -> Any:
    """A hidden activation of all tokens."""
    return c.tokens * c.hidden * COMPUTE_BYTES[c.precision]


def boundary_bytes(c: Columns) -> Any:
    """The activation between two layers."""
    return hidden_bytes(c) / np.where(c.sequence_parallel, c.tp, 1)


def block_kept_bytes(c: Columns, compiled: Any) -> Any:
    """Activations that a block keeps for its backward pass: with full recompute only its input."""
    full, selective = c.recompute == RecomputeCode.FULL, c.recompute == RecomputeCode.SELECTIVE
    return np.where(full, boundary_bytes(c), block_activation_bytes(c, selective, compiled))


def block_activation_bytes(c: Columns, selective: Any, compiled: Any) -> Any:
    """Inputs and outputs of both norms; queries, keys, values and the attention's output; inside the MLP the output of
    its first GEMM and of the activation function, or with a gate both outputs, the opened gate and the result. In fp8
    what goes into a GEMM is kept in 8 bits; the attention keeps its output beside them.

    A compiler recomputes some of it: the attention's output where the attention itself is recomputed, an opened gate
    but in 8 bits, and there all but the norms' outputs. It keeps something too: the rows of the weights from which
    query, key and value are split, or of one matrix the 8-bit elements."""
    compute, given = COMPUTE_BYTES[c.precision], GEMM_BYTES.get(c.precision, COMPUTE_BYTES[c.precision])
    eight_bits = given != compute
    grouped = c.kv_heads < c.heads
    # Of queries and keys, rotated or repeated for the attention; a compiler keeps the rotated ones instead.
    copies = np.where(c.rotary, np.where(compiled, 0, c.hidden + c.kv_width), grouped * c.hidden)
    output = np.where(selective | (not eight_bits), 0, c.hidden)
    attention = (c.hidden + 2 * c.kv_width + np.where(selective, 0, copies) + output) * compute
    attention = attention + np.where(compiled & (selective | eight_bits), 0, c.hidden * given)
    inside = np.where(c.matrices == 3, np.where(compiled & (not eight_bits), 2, 3), 1)
    mlp = c.ffn * (inside * compute + np.where(compiled & eight_bits, 0, given))
    softmax_sums = np.where(selective, 0, c.heads) * FP32
    split_weights = np.where(selective, 0, (c.hidden + 2 * c.kv_width) * c.hidden * compute)
    matrices = np.where(compiled, c.hidden * c.ffn * given if eight_bits else split_weights, 0)
    norms = (2 + 2 * given / compute) * boundary_bytes(c)
    return norms + c.tokens / c.tp * (attention + mlp + softmax_sums) + matrices


def block_deferred_bytes(c: Columns) -> Any:
    """Gradients of the outputs of a block's GEMMs, kept until a zero bubble computes the weights' gradients."""
    inside = c.ffn * np.where(c.matrices == 3, 2, 1) + c.hidden + 2 * c.kv_width
    return 3 * boundary_bytes(c) + c.tokens / c.tp * inside * COMPUTE_BYTES[c.precision]


def fp8_gemm_bytes(c: Columns) -> Any:
    """At the MLP's second matrix in fp8: the gradient in 8 bits, and it and the input transposed."""
    return (c.precision == "fp8") * c.tokens * (2 * c.hidden + c.ffn / c.tp)


def fp8_recompute_bytes(c: Columns, compiled: Any) -> Any:
    """There too, where fp8's forward pass is recomputed: the input before it is scaled, and before it is quantized.
    Compiled it takes 3 bytes a hidden element more by the scales, as would a norm's output before and after that."""
    recomputes = (c.precision == "fp8") & (c.recompute == RecomputeCode.FULL)
    inputs = 2 * c.tokens * c.ffn / c.tp * COMPUTE_BYTES[c.precision]
    return recomputes * (inputs + compiled * 3 * c.tokens * c.hidden)


def loss_bytes(c: Columns, compiled: Any) -> Any:
    """Logits of one chunk of tokens, and the gradients that the loss computes at once. Compiled, it needs no fp32."""
    compute = COMPUTE_BYTES[c.precision]
    rows = c.vocab_rows / c.tp
    chunk = loss_chunk_tokens(rows)
    logits = np.minimum(chunk, c.tokens) * rows
    matrix = rows * c.hidden
    summed = np.where(chunk < c.tokens, matrix * FP32, 0.0)
    forward = logits * np.where(compiled, 2 * compute, FP32 + (compute if compute != FP32 else 0))
    return hidden_bytes(c) + summed + np.maximum(forward, logits * compute + matrix * compute)
