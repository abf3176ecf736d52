"""Residual add and norm, and their backward pass, in Triton: a program has whole rows, which are read once.

Inside a compiled layer PyTorch's compiler traces the two functions below, and launches the kernels with its own."""

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

FORWARD, BACKWARD, BACKWARD_AND_BIAS = 16, 8, 16  # elements of a row per thread: four programs fit on an SM
PARTIALS = 528  # programs of a backward pass, each with its own sums for the weights: four on each SM of an H100


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm_forward_kernel(  # type: ignore[no-untyped-def]
    x, y, y_bias, weight, bias, total, normed, statistics, width, eps,
    adds: tl.constexpr, adds_bias: tl.constexpr, centred: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # 64-bit offsets: there are matrices of more than 2**31 elements
    column = tl.arange(0, block)
    mask = column < width
    at = row * width + column
    a = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if adds:
        a += tl.load(y + at, mask=mask, other=0.0).to(tl.float32)
        if adds_bias:
            a += tl.load(y_bias + column, mask=mask, other=0.0).to(tl.float32)
        rounded = a.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=mask)
        a = rounded.to(tl.float32)
    mean = 0.0
    if centred:
        mean = tl.sum(a, 0) / width
    deviation = tl.where(mask, a - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(deviation * deviation, 0) / width + eps)
    result = deviation * rstd * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    if centred:
        result += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(normed + at, result, mask=mask)
    tl.store(statistics + 2 * row, mean)
    tl.store(statistics + 2 * row + 1, rstd)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm_backward_kernel(  # type: ignore[no-untyped-def]
    grad, second, third, grad_total, total, weight, statistics, result, partials, rows, width,
    consumers: tl.constexpr, adds_bias: tl.constexpr, centred: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, block)
    mask = column < width
    w = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    grad_weight = tl.zeros([block], tl.float32)
    grad_bias = tl.zeros([block], tl.float32)
    grad_y_bias = tl.zeros([block], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = row * tl.cast(width, tl.int64) + column
        g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
        if consumers > 1:
            g += tl.load(second + at, mask=mask, other=0.0).to(tl.float32)
        if consumers > 2:
            g += tl.load(third + at, mask=mask, other=0.0).to(tl.float32)
        a = tl.load(total + at, mask=mask, other=0.0).to(tl.float32)
        residual = tl.load(grad_total + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(statistics + 2 * row + 1)
        standard = (a - tl.load(statistics + 2 * row)) * rstd
        grad_weight += g * standard
        grad_bias += g
        g *= w
        inner = g - standard * (tl.sum(g * standard, 0) / width)
        if centred:
            inner -= tl.sum(g, 0) / width
        inner = inner * rstd + residual
        if adds_bias:
            grad_y_bias += inner
        tl.store(result + at, inner, mask=mask)
    sums = 3 if adds_bias else 2
    at = tl.program_id(0) * sums * width + column
    tl.store(partials + at, grad_weight, mask=mask)
    tl.store(partials + at + width, grad_bias, mask=mask)
    if adds_bias:
        tl.store(partials + at + 2 * width, grad_y_bias, mask=mask)


def add_norm_forward(
    x: Tensor, y: Tensor | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = x.shape
    total = x.view_as(x) if y is None else torch.empty_like(x)
    normed, statistics = torch.empty_like(x), x.new_empty(rows, 2, dtype=torch.float32)
    block, warps = launch_shape(width, FORWARD)
    addends = x.contiguous(), (x if y is None else y).contiguous(), weight if y_bias is None else y_bias
    outputs = normed if y is None else total, normed, statistics
    flags = y is not None, y_bias is not None, bias is not None
    _add_norm_forward_kernel[(rows,)](
        *addends, weight, weight if bias is None else bias, *outputs, width, eps, *flags, block, num_warps=warps
    )
    return total, normed, statistics


def add_norm_backward(
    grads: Sequence[Tensor],
    grad_total: Tensor,
    total: Tensor,
    weight: Tensor,
    statistics: Tensor,
    centred: bool,
    adds_bias: bool,
) -> tuple[Tensor, Tensor]:
    rows, width = total.shape
    programs = min(PARTIALS, rows)
    result, partials = torch.empty_like(total), statistics.new_empty(programs, 3 if adds_bias else 2, width)
    block, warps = launch_shape(width, BACKWARD_AND_BIAS if adds_bias else BACKWARD)
    first, second, third = (grad.contiguous() for grad in (*grads, grads[0], grads[0])[:3])
    inputs = first, second, third, grad_total.contiguous(), total, weight, statistics
    flags = len(grads), adds_bias, centred
    _add_norm_backward_kernel[(programs,)](*inputs, result, partials, rows, width, *flags, block, num_warps=warps)
    return result, partials


def launch_shape(width: int, per_thread: int) -> tuple[int, int]:
    """Block size (the row's width, rounded up to a power of two) and number of warps."""
    block = 1 << (width - 1).bit_length()
    return block, min(max(block // (32 * per_thread), 1), 16)
