"""Tensor parallelism's traffic as differentiable operations; engine.model.linear builds its two layers on it.

Between layers an activation is [tokens, hidden]: whole on every tensor rank, or with sequence parallelism one slice of
the tokens each. A column layer cuts its outputs over the ranks, a row layer its inputs; together they need one
exchange on the way in and one on the way out (Megatron-LM, arXiv 1909.08053; sequence parallelism 2205.05198).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed these two; 2.11 has only the old names.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class TensorAxis:
    """The ranks that share every layer, as one of them sees it."""

    size: int = 1
    rank: int = 0
    group: Any = None
    sequence: bool = False  # whether activations between layers are cut along the tokens

    @property
    def cuts_tokens(self) -> bool:
        return self.sequence and self.size > 1

    def part(self, whole: int) -> int:
        return whole // self.size

    def tokens(self, whole: Tensor) -> Tensor:
        """This rank's slice of something with one row per token."""
        return whole.tensor_split(self.size)[self.rank] if self.cuts_tokens else whole


def total(x: Tensor, group: Any) -> Tensor:
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def gathered(x: Tensor, group: Any) -> Tensor:
    """The slices of all ranks, one after another along the first dimension."""
    whole = x.new_empty((x.shape[0] * dist.get_world_size(group), *x.shape[1:]))
    all_gather(whole, x.contiguous(), group=group)
    return whole


def scattered(x: Tensor, group: Any) -> Tensor:
    """The sum over all ranks, of which each keeps its slice of the first dimension."""
    part = x.new_empty((x.shape[0] // dist.get_world_size(group), *x.shape[1:]))
    reduce_scatter(part, x.contiguous(), group=group)
    return part


class Spread(torch.autograd.Function):
    """Forward: what every rank has already. Backward: the sum of what each rank did with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return total(grad, ctx.group), None


class Sum(torch.autograd.Function):
    """Forward: the sum over the ranks. Backward: as it comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return total(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class Gather(torch.autograd.Function):
    """Forward: all tokens from slices. Backward: the sum of what each rank did with them, sliced again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return scattered(grad, ctx.group), None


class Scatter(torch.autograd.Function):
    """Forward: the sum over the ranks, sliced. Backward: all tokens from slices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return gathered(grad, ctx.group), None


def into_layers(x: Tensor, axis: TensorAxis) -> Tensor:
    """All tokens, for a computation that every tensor rank does a part of."""
    if axis.size == 1:
        return x
    return Gather.apply(x, axis.group) if axis.sequence else Spread.apply(x, axis.group)


def out_of_layers(x: Tensor, axis: TensorAxis) -> Tensor:
    """The sum of the ranks' parts, in the form activations have between layers."""
    if axis.size == 1:
        return x
    return Scatter.apply(x, axis.group) if axis.sequence else Sum.apply(x, axis.group)
