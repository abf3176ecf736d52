"""A residual stream and its norm, together: x + y, and the norm of that. Inside compiled layers.

A norm's gradient needs a sum over each row, its weights' gradients need sums over each column. PyTorch's compiler joins
the two as it finds them: it put the columns of one norm into the kernel of the other, which so read 0.3 GB for nothing,
and wrote a partial sum for every 16 rows; 0.58 ms a layer on an H200 (docs/gpu.md). Here each norm's backward pass is
one kernel, which adds the residual's gradient and those of all readers, and 528 programs share the columns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

WIDEST = 8192  # a row lies in the registers of one program
PARTS = 528  # programs of a backward pass, each with its own sums for the weights: four on each processor of an H100


def can_add_and_norm(x: Tensor) -> bool:
    return x.shape[-1] <= WIDEST


def add_and_norm(x: Tensor, y: Tensor | None, norm: nn.Module, readers: int = 1) -> tuple[Tensor, ...]:
    """x + y (x where there is no y), and its norm once for each reader: so their gradients come apart."""
    return AddAndNorm.apply(x, y, norm.weight, getattr(norm, "bias", None), norm.eps, readers)


class AddAndNorm(torch.autograd.Function):
    """LayerNorm where there is a bias, RMSNorm where there is none."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, readers: int
    ) -> tuple[Tensor, ...]:
        if y is None:
            total, (normed, statistics) = x.view_as(x), normed_rows(x, weight, bias, eps)
        else:
            total, normed, statistics = added_normed_rows(x, y, weight, bias, eps)
        ctx.save_for_backward(total, weight, statistics)
        ctx.adds, ctx.has_bias = y is not None, bias is not None
        return total, *(normed.view_as(normed) for _ in range(readers))

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, *grads: Tensor) -> Any:
        total, weight, statistics = ctx.saved_tensors
        grad, parts = rows_gradient(grads, grad_total, total, weight, statistics, ctx.has_bias)
        columns = parts.sum(0).to(weight.dtype)
        return grad, grad if ctx.adds else None, columns[0], columns[1] if ctx.has_bias else None, None, None


@torch.library.custom_op("trimaran::normed_rows", mutates_args=())
def normed_rows(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of every row, and each row's mean (0 in RMSNorm) and 1 / deviation, [rows, 2] in fp32 or wider."""
    wide = x.to(wide_dtype(x))
    mean = torch.zeros_like(wide[:, :1]) if bias is None else wide.mean(1, keepdim=True)
    scale = (wide - mean).square().mean(1, keepdim=True).add(eps).rsqrt()
    normed = (wide - mean) * scale * weight + (0 if bias is None else bias)
    return normed.to(x.dtype), torch.cat((mean, scale), 1)


@torch.library.custom_op("trimaran::added_normed_rows", mutates_args=())
def added_normed_rows(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of x + y, after x + y."""
    total = x + y
    return total, *normed_rows(total, weight, bias, eps)


@torch.library.custom_op("trimaran::rows_gradient", mutates_args=())
def rows_gradient(
    grads: Sequence[Tensor], grad_total: Tensor, total: Tensor, weight: Tensor, statistics: Tensor, centred: bool
) -> tuple[Tensor, Tensor]:
    """Of the total, given those of its norm's readers and its own; and the weight's and bias's as sums over some of the
    rows each, [parts, 2, width]."""
    wide = statistics.dtype
    grad, (mean, scale) = torch.stack(list(grads)).to(wide).sum(0), statistics.split(1, 1)
    unit = (total.to(wide) - mean) * scale
    columns = torch.stack(((grad * unit).sum(0), grad.sum(0)))[None]
    grad = grad * weight
    along = unit * (grad * unit).mean(1, keepdim=True)
    shift = grad.mean(1, keepdim=True) if centred else 0
    parts = columns.new_zeros(parts_of(total), *columns.shape[1:])
    parts[:1] = columns
    return ((grad - shift - along) * scale + grad_total).to(total.dtype), parts


def wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def parts_of(x: Tensor) -> int:
    return min(PARTS, x.shape[0])


@normed_rows.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[0], 2, dtype=wide_dtype(x))


@added_normed_rows.register_fake
def _(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(x.shape[0], 2, dtype=wide_dtype(x))


@rows_gradient.register_fake
def _(
    grads: Sequence[Tensor], grad_total: Tensor, total: Tensor, weight: Tensor, statistics: Tensor, centred: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(total), statistics.new_empty(parts_of(total), 2, total.shape[1])


@normed_rows.register_kernel("cuda")
def _(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    from trimaran.engine.residual_norm_kernel import norm_rows  # its language is there where CUDA is

    _, normed, statistics = norm_rows(x, None, weight, bias, eps)
    return normed, statistics


@added_normed_rows.register_kernel("cuda")
def _(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    from trimaran.engine.residual_norm_kernel import norm_rows

    return norm_rows(x, y, weight, bias, eps)


@rows_gradient.register_kernel("cuda")
def _(
    grads: Sequence[Tensor], grad_total: Tensor, total: Tensor, weight: Tensor, statistics: Tensor, centred: bool
) -> tuple[Tensor, Tensor]:
    from trimaran.engine.residual_norm_kernel import gradient_of_rows

    return gradient_of_rows(grads, grad_total, total, weight, statistics, centred, parts_of(total))
