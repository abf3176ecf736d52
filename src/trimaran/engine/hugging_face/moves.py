"""How a tensor of ours lies in theirs: two functions that undo each other.

They only move numbers, so what holds for weights holds for gradients. Each works on a matrix and on its bias.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimaran.spec import Model


@dataclass(frozen=True)
class Move:
    ours: Callable[[Sequence[Tensor]], Tensor]
    theirs: Callable[[Tensor], Sequence[Tensor]]


def same(model: Model) -> Move:
    return Move(lambda parts: parts[0], lambda whole: [whole])


def transposed(model: Model) -> Move:
    return Move(lambda parts: parts[0].t(), lambda whole: [whole.t()])


def gated(model: Model) -> Move:
    """Theirs are two matrices, gate and channel; in ours each gate lies beside its channel."""
    return Move(
        lambda parts: torch.stack(tuple(parts), dim=1).flatten(0, 1),
        lambda whole: whole.unflatten(0, (-1, 2)).unbind(1),
    )


def grouped(model: Model) -> Move:
    """Theirs are three matrices; ours has, for each key/value head, its queries, then the key, then the value."""
    dim, groups = model.head_dim, model.kv_heads
    sizes = [model.heads // groups * dim, dim, dim]
    return Move(
        lambda parts: torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1),
        lambda whole: [part.flatten(0, 1) for part in whole.unflatten(0, (groups, -1)).split(sizes, dim=1)],
    )


def joined(model: Model) -> Move:
    """Theirs is one transposed matrix: all queries, then all keys, then all values."""
    apart = grouped(model)
    return Move(
        lambda parts: apart.ours(parts[0].t().chunk(3)),
        lambda whole: [torch.cat(list(apart.theirs(whole))).t()],
    )
