"""Gradients between the backward pass and the optimizer: the remaining sums over ranks, norm, clipping."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.parallel.gradient_reduction import all_reduce_bucketed
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import MasterWeight


def finalize_gradients(masters: Sequence[MasterWeight], world: World) -> None:
    """With sequence parallelism each tensor rank saw only its tokens, so gradients of replicated parameters are summed
    over the ranks; the two copies of a tied embedding share the sum of their gradients."""
    if world.tensor_axis.sequence_parallel:
        all_reduce_bucketed([master.gradient for master in masters if master.tensor.cut is None], world.group("tp"))
    if world.tied_group is not None:
        embedding = [master.gradient for master in masters if master.tensor.name == "embedding.word"]
        all_reduce_bucketed(embedding, world.tied_group)


def grad_norm_and_sums(masters: Sequence[MasterWeight], values: Tensor, world: World) -> tuple[Tensor, Tensor]:
    """The norm of the whole model's gradient, and the sums of other values over all ranks, in one all-reduce."""
    squares = torch.zeros((), dtype=torch.float64, device=world.device)
    originals = [master for master in masters if not master.tied_copy]
    for replicas in {master.replicas(world) for master in originals}:
        gradients = [master.gradient for master in originals if master.replicas(world) == replicas]
        norms = torch._foreach_norm(gradients, 2.0, dtype=torch.float32)
        squares += torch.stack(norms).double().square().sum() / replicas
    totals = torch.cat([squares[None], values])
    if world.mesh is not None:
        dist.all_reduce(totals)
    return totals[0].sqrt(), totals[1:]


def clip_factor(norm: Tensor, scale: float, limit: float | None) -> Tensor:
    """What gradients are multiplied by: removes the loss scale and clips the norm to the limit. Stays on the device. A
    NaN norm gives a NaN factor."""
    factor = torch.ones_like(norm) if limit is None else (limit / (norm + 1e-6)).clamp(max=1.0)
    return (factor / scale).float()


def clip_(masters: Sequence[MasterWeight], factor: Tensor) -> None:
    torch._foreach_mul_([master.gradient for master in masters], factor)
