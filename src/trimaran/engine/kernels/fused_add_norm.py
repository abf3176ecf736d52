"""Residual add and norm in one operation: x + y, and the norm of that. Used inside compiled layers.

A norm's input gradient needs a sum over each row, its weights' gradients need sums over each column. PyTorch's compiler
fuses the two as it finds them: it put the columns of one norm into the kernel of the other, which so read 0.3 GB for
nothing, and wrote a partial sum for every 16 rows; 0.58 ms a layer on an H200 (docs/gpu.md). Here each norm's backward
pass is one kernel, which adds the residual's gradient and those of all consumers, and few programs share the columns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

WIDEST = 8192  # a row lies in the registers of one program


def fused_add_norm(
    x: Tensor, y: Tensor | None, y_bias: Tensor | None, norm: nn.Module, consumers: int = 1
) -> tuple[Tensor, ...]:
    """x + y + y_bias (x where there is no y), and the norm of that, once per consumer: so their gradients arrive
    separately and are summed inside the kernel."""
    return FusedAddNorm.apply(x, y, y_bias, norm.weight, getattr(norm, "bias", None), norm.eps, consumers)


class FusedAddNorm(torch.autograd.Function):
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
        consumers: int,
    ) -> tuple[Tensor, ...]:
        if x.is_cuda:  # Triton comes with CUDA builds only
            from trimaran.engine.kernels.fused_add_norm_triton import add_norm_forward as forward
        else:
            forward = add_norm_forward
        total, normed, statistics = forward(x, y, y_bias, weight, bias, eps)
        ctx.save_for_backward(total, weight, statistics)
        ctx.adds, ctx.adds_bias, ctx.has_bias = y is not None, y_bias is not None, bias is not None
        return total, *(normed.view_as(normed) for _ in range(consumers))

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, *grads: Tensor) -> Any:
        total, weight, statistics = ctx.saved_tensors
        if total.is_cuda:
            from trimaran.engine.kernels.fused_add_norm_triton import add_norm_backward as backward
        else:
            backward = add_norm_backward
        grad, partials = backward(grads, grad_total, total, weight, statistics, ctx.has_bias, ctx.adds_bias)
        columns = partials.sum(0).to(weight.dtype)
        grad_y, grad_y_bias = grad if ctx.adds else None, columns[2] if ctx.adds_bias else None
        return grad, grad_y, grad_y_bias, columns[0], columns[1] if ctx.has_bias else None, None, None


def add_norm_forward(
    x: Tensor, y: Tensor | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x + y + y_bias, the norm of that, and each row's mean (0 in RMSNorm) and reciprocal standard deviation, [rows, 2]
    in fp32 or wider."""
    total = x.view_as(x) if y is None else x + y
    total = total if y_bias is None else total + y_bias
    wide = total.to(torch.promote_types(x.dtype, torch.float32))
    mean = torch.zeros_like(wide[:, :1]) if bias is None else wide.mean(1, keepdim=True)
    rstd = (wide - mean).square().mean(1, keepdim=True).add(eps).rsqrt()
    normed = (wide - mean) * rstd * weight + (0 if bias is None else bias)
    return total, normed.to(x.dtype), torch.cat((mean, rstd), 1)


def add_norm_backward(
    grads: Sequence[Tensor],
    grad_total: Tensor,
    total: Tensor,
    weight: Tensor,
    statistics: Tensor,
    centred: bool,
    adds_bias: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient of the total, given those of its norm's consumers and its own; and those of the norm's weight, its
    bias and y_bias (where there is one) as partial sums over rows (here: over all), [partials, 2 or 3, width]."""
    wide = statistics.dtype
    grad, (mean, rstd) = torch.stack(list(grads)).to(wide).sum(0), statistics.split(1, 1)
    standard = (total.to(wide) - mean) * rstd
    columns = [(grad * standard).sum(0), grad.sum(0)]
    grad = grad * weight
    along = standard * (grad * standard).mean(1, keepdim=True)
    shift = grad.mean(1, keepdim=True) if centred else 0
    result = (grad - shift - along) * rstd + grad_total
    columns += [result.sum(0)] if adds_bias else []
    return result.to(total.dtype), torch.stack(columns)[None]
