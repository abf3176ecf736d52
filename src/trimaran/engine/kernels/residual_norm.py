"""A residual stream and its norm, together: x + y, and the norm of that. Inside compiled layers.

A norm's gradient needs a sum over each row, its weights' gradients need sums over each column. PyTorch's compiler joins
the two as it finds them: it put the columns of one norm into the kernel of the other, which so read 0.3 GB for nothing,
and wrote a partial sum for every 16 rows; 0.58 ms a layer on an H200 (docs/gpu.md). Here each norm's backward pass is
one kernel, which adds the residual's gradient and those of all readers, and few programs share the columns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

WIDEST = 8192  # a row lies in the registers of one program


def can_add_and_norm(x: Tensor) -> bool:
    return x.shape[-1] <= WIDEST


def add_and_norm(
    x: Tensor, y: Tensor | None, y_bias: Tensor | None, norm: nn.Module, readers: int = 1
) -> tuple[Tensor, ...]:
    """x + y + its bias (x where there is no y), and the norm of that, once for each reader: so their gradients come
    apart."""
    return AddAndNorm.apply(x, y, y_bias, norm.weight, getattr(norm, "bias", None), norm.eps, readers)


class AddAndNorm(torch.autograd.Function):
    """LayerNorm where there is a bias, RMSNorm where there is none."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        y_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        readers: int,
    ) -> tuple[Tensor, ...]:
        if x.is_cuda:
            from trimaran.engine.kernels.residual_norm_triton import norm_rows  # its language is there where CUDA is

            total, normed, statistics = norm_rows(x, y, y_bias, weight, bias, eps)
        else:
            total, normed, statistics = normed_rows(x, y, y_bias, weight, bias, eps)
        ctx.save_for_backward(total, weight, statistics)
        ctx.adds, ctx.adds_bias, ctx.has_bias = y is not None, y_bias is not None, bias is not None
        return total, *(normed.view_as(normed) for _ in range(readers))

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, *grads: Tensor) -> Any:
        total, weight, statistics = ctx.saved_tensors
        if total.is_cuda:
            from trimaran.engine.kernels.residual_norm_triton import gradient_of_rows

            grad, parts = gradient_of_rows(grads, grad_total, total, weight, statistics, ctx.has_bias, ctx.adds_bias)
        else:
            grad, parts = rows_gradient(grads, grad_total, total, weight, statistics, ctx.has_bias, ctx.adds_bias)
        columns = parts.sum(0).to(weight.dtype)
        grad_y, grad_y_bias = grad if ctx.adds else None, columns[2] if ctx.adds_bias else None
        return grad, grad_y, grad_y_bias, columns[0], columns[1] if ctx.has_bias else None, None, None


def normed_rows(
    x: Tensor, y: Tensor | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x + y + its bias, the norm of that, and each row's mean (0 in RMSNorm) and 1 / deviation, [rows, 2] in fp32 or
    wider."""
    total = x.view_as(x) if y is None else x + y
    total = total if y_bias is None else total + y_bias
    wide = total.to(torch.promote_types(x.dtype, torch.float32))
    mean = torch.zeros_like(wide[:, :1]) if bias is None else wide.mean(1, keepdim=True)
    scale = (wide - mean).square().mean(1, keepdim=True).add(eps).rsqrt()
    normed = (wide - mean) * scale * weight + (0 if bias is None else bias)
    return total, normed.to(x.dtype), torch.cat((mean, scale), 1)


def rows_gradient(
    grads: Sequence[Tensor],
    grad_total: Tensor,
    total: Tensor,
    weight: Tensor,
    statistics: Tensor,
    centred: bool,
    adds_bias: bool,
) -> tuple[Tensor, Tensor]:
    """Of the total, given those of its norm's readers and its own; and those of the norm's weight, its bias and y's
    bias (where there is one) as sums over some of the rows each (here: over all), [parts, 2 or 3, width]."""
    wide = statistics.dtype
    grad, (mean, scale) = torch.stack(list(grads)).to(wide).sum(0), statistics.split(1, 1)
    unit = (total.to(wide) - mean) * scale
    columns = [(grad * unit).sum(0), grad.sum(0)]
    grad = grad * weight
    along = unit * (grad * unit).mean(1, keepdim=True)
    shift = grad.mean(1, keepdim=True) if centred else 0
    result = (grad - shift - along) * scale + grad_total
    columns += [result.sum(0)] if adds_bias else []
    return result.to(total.dtype), torch.stack(columns)[None]
