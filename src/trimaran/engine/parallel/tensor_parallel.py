"""Tensor parallelism's collectives as differentiable operations; engine.model.linear builds its two layers on them.

Between layers an activation is [tokens, hidden]: replicated on every tensor rank, or with sequence parallelism sharded
along the tokens. A column-parallel layer shards its outputs over the ranks, a row-parallel layer its inputs; the pair
needs one collective on entry and one on exit (Megatron-LM, arXiv 1909.08053; sequence parallelism 2205.05198).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed these two; 2.11 has only the old names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Collective = Callable[[Tensor, Any], Tensor]  # of a tensor, in a process group


@dataclass(frozen=True)
class TensorAxis:
    """The tensor-parallel axis of the mesh, as one of its ranks sees it."""

    size: int = 1
    rank: int = 0
    group: Any = None
    sequence_parallel: bool = False  # activations between layers are sharded along the tokens

    def shard_size(self, whole: int) -> int:
        return whole // self.size

    def local_tokens(self, x: Tensor) -> Tensor:
        """This rank's shard of something with one row per token."""
        return x.tensor_split(self.size)[self.rank] if self.sequence_parallel else x


def all_reduce(x: Tensor, group: Any) -> Tensor:
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def all_gather(x: Tensor, group: Any) -> Tensor:
    """The shards of all ranks, concatenated along the first dimension."""
    whole = x.new_empty((x.shape[0] * dist.get_world_size(group), *x.shape[1:]))
    _all_gather_single(whole, x.contiguous(), group=group)
    return whole


def reduce_scatter(x: Tensor, group: Any) -> Tensor:
    """The sum over all ranks, of which each keeps its shard along the first dimension."""
    shard = x.new_empty((x.shape[0] // dist.get_world_size(group), *x.shape[1:]))
    _reduce_scatter_single(shard, x.contiguous(), group=group)
    return shard


def identity(x: Tensor, group: Any) -> Tensor:
    return x.view_as(x)


class TensorParallelCollective(torch.autograd.Function):
    """One collective in the forward pass, its transpose in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Collective, backward: Collective, group: Any) -> Tensor:
        ctx.transpose, ctx.group = backward, group
        return forward(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.transpose(grad, ctx.group), None, None, None


def enter_tp(x: Tensor, axis: TensorAxis) -> Tensor:
    """All tokens, for a computation that is sharded over the tensor ranks. Megatron-LM's copy to the tensor-parallel
    region, or gather from the sequence-parallel one."""
    if axis.size == 1:
        return x
    collectives = (all_gather, reduce_scatter) if axis.sequence_parallel else (identity, all_reduce)
    return TensorParallelCollective.apply(x, *collectives, axis.group)


def exit_tp(x: Tensor, axis: TensorAxis) -> Tensor:
    """The sum of the ranks' partial results, replicated or sharded as activations are between layers. Megatron-LM's
    reduce from the tensor-parallel region, or reduce-scatter to the sequence-parallel one."""
    if axis.size == 1:
        return x
    collectives = (reduce_scatter, all_gather) if axis.sequence_parallel else (all_reduce, identity)
    return TensorParallelCollective.apply(x, *collectives, axis.group)
