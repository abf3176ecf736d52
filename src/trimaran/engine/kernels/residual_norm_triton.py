"""The norm of rows, and its gradient, in Triton: a program has whole rows, and they are read once.

Inside a compiled layer PyTorch's compiler reads the two functions below, and starts the kernels with its own."""

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

NORM, GRADIENT, GRADIENT_AND_BIAS = 16, 8, 16  # numbers of a row that a thread has: four programs' fit a processor
PARTS = 528  # programs of a backward pass, each with its own sums for the weights: four on each processor of an H100


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm(  # type: ignore[no-untyped-def]
    x, y, y_bias, weight, bias, total, normed, statistics, width, eps,
    adds: tl.constexpr, adds_bias: tl.constexpr, centred: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # 64-bit places: there are matrices of more than 2**31 numbers
    column = tl.arange(0, block)
    inside = column < width
    at = row * width + column
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if adds:
        a += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        if adds_bias:
            a += tl.load(y_bias + column, mask=inside, other=0.0).to(tl.float32)
        rounded = a.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=inside)
        a = rounded.to(tl.float32)
    mean = 0.0
    if centred:
        mean = tl.sum(a, 0) / width
    apart = tl.where(inside, a - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / width + eps)
    result = apart * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if centred:
        result += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, result, mask=inside)
    tl.store(statistics + 2 * row, mean)
    tl.store(statistics + 2 * row + 1, scale)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gradient(  # type: ignore[no-untyped-def]
    grad, second, third, grad_total, total, weight, statistics, result, parts, rows, width,
    readers: tl.constexpr, adds_bias: tl.constexpr, centred: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, block)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros([block], tl.float32)
    of_bias = tl.zeros([block], tl.float32)
    of_y_bias = tl.zeros([block], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = row * tl.cast(width, tl.int64) + column
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if readers > 1:
            g += tl.load(second + at, mask=inside, other=0.0).to(tl.float32)
        if readers > 2:
            g += tl.load(third + at, mask=inside, other=0.0).to(tl.float32)
        a = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
        beside = tl.load(grad_total + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(statistics + 2 * row + 1)
        unit = (a - tl.load(statistics + 2 * row)) * scale
        of_weight += g * unit
        of_bias += g
        g *= factor
        inner = g - unit * (tl.sum(g * unit, 0) / width)
        if centred:
            inner -= tl.sum(g, 0) / width
        inner = inner * scale + beside
        if adds_bias:
            of_y_bias += inner
        tl.store(result + at, inner, mask=inside)
    sums = 3 if adds_bias else 2
    at = tl.program_id(0) * sums * width + column
    tl.store(parts + at, of_weight, mask=inside)
    tl.store(parts + at + width, of_bias, mask=inside)
    if adds_bias:
        tl.store(parts + at + 2 * width, of_y_bias, mask=inside)


def norm_rows(
    x: Tensor, y: Tensor | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = x.shape
    total = x.view_as(x) if y is None else torch.empty_like(x)
    normed, statistics = torch.empty_like(x), x.new_empty(rows, 2, dtype=torch.float32)
    block, warps = shape(width, NORM)
    addends = x.contiguous(), (x if y is None else y).contiguous(), weight if y_bias is None else y_bias
    written = normed if y is None else total, normed, statistics
    kinds = y is not None, y_bias is not None, bias is not None
    _norm[(rows,)](
        *addends, weight, weight if bias is None else bias, *written, width, eps, *kinds, block, num_warps=warps
    )
    return total, normed, statistics


def gradient_of_rows(
    grads: Sequence[Tensor],
    grad_total: Tensor,
    total: Tensor,
    weight: Tensor,
    statistics: Tensor,
    centred: bool,
    adds_bias: bool,
) -> tuple[Tensor, Tensor]:
    rows, width = total.shape
    programs = min(PARTS, rows)
    result, parts = torch.empty_like(total), statistics.new_empty(programs, 3 if adds_bias else 2, width)
    block, warps = shape(width, GRADIENT_AND_BIAS if adds_bias else GRADIENT)
    first, second, third = (grad.contiguous() for grad in (*grads, grads[0], grads[0])[:3])
    given = first, second, third, grad_total.contiguous(), total, weight, statistics
    kinds = len(grads), adds_bias, centred
    _gradient[(programs,)](*given, result, parts, rows, width, *kinds, block, num_warps=warps)
    return result, parts


def shape(width: int, each: int) -> tuple[int, int]:
    """Numbers of a row as a program sees it, and its warps."""
    block = 1 << (width - 1).bit_length()
    return block, min(max(block // (32 * each), 1), 16)
