"""What is done to gradients between the backward pass and the optimizer: the sums that layouts owe, norm, clipping."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.parallel.gradient_reduction import sum_over
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import Slot


def complete(slots: Sequence[Slot], world: World) -> None:
    """With sequence parallelism each tensor rank saw some tokens only, so what is not cut must be summed over them;
    the two copies of a tied embedding have one gradient, the sum of theirs."""
    if world.tensor_axis.cuts_tokens:
        sum_over([slot.gradient for slot in slots if slot.tensor.cut is None], world.group("tp"))
    if world.tied is not None:
        sum_over([slot.gradient for slot in slots if slot.tensor.name == "embedding.word"], world.tied)


def norm_and_sums(slots: Sequence[Slot], sums: Sequence[Tensor], world: World) -> tuple[Tensor, ...]:
    """The norm of the whole model's gradient, and the sums of other scalars over all ranks: one exchange for all."""
    squares = torch.zeros((), dtype=torch.float64, device=world.device)
    counted = [slot for slot in slots if not slot.copy]
    for replicas in {slot.replicas(world) for slot in counted}:
        gradients = [slot.gradient for slot in counted if slot.replicas(world) == replicas]
        norms = torch._foreach_norm(gradients, 2.0, dtype=torch.float32)
        squares += torch.stack(norms).double().square().sum() / replicas
    totals = torch.stack([squares, *(value.double() for value in sums)])
    if world.mesh is not None:
        dist.all_reduce(totals)
    return totals[0].sqrt(), *totals[1:]


def shortening(norm: Tensor, scale: float, limit: float | None) -> Tensor:
    """What gradients are multiplied by: the loss scale is taken out, and the whole is shortened to the limit. Stays on
    the device. A norm that is no number makes it none."""
    short = torch.ones_like(norm) if limit is None else (limit / (norm + 1e-6)).clamp(max=1.0)
    return (short / scale).float()


def shorten(slots: Sequence[Slot], factor: Tensor) -> None:
    torch._foreach_mul_([slot.gradient for slot in slots], factor)
