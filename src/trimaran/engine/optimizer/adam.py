"""AdamW in the variants a Job can name: PyTorch's (plain or fused), our fused kernel, torchao's with 8-bit moments."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from trimaran.engine.kernels.fused_adamw import FusedAdamW
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import MasterWeight, uses_fused_adamw
from trimaran.spec import Job, Recipe

MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(job: Job, masters: Iterable[MasterWeight], world: World) -> Optimizer:
    """Two parameter groups: with weight decay, and without."""
    recipe, masters = job.recipe, list(masters)
    decayed = [master.value for master in masters if is_decayed(master.tensor.name, recipe)]
    undecayed = [master.value for master in masters if not is_decayed(master.tensor.name, recipe)]
    groups = [
        {"params": values, "weight_decay": decay}
        for values, decay in ((decayed, recipe.weight_decay), (undecayed, 0.0))
        if values
    ]
    options: dict[str, Any] = {"lr": recipe.learning_rate, "betas": recipe.betas, "eps": recipe.eps}
    if job.optimizer == "adam-8bit":
        return adamw_8bit(groups, **options)
    if uses_fused_adamw(job, world):
        return FusedAdamW(groups, masters, **options)
    return AdamW(groups, **options, fused=job.optimizer == "fused-adam")


def adamw_8bit(groups: Iterable[Any], **options: Any) -> Optimizer:
    for name in ("torchao", "torch.utils._pytree"):  # they warn of every extension this machine cannot load,
        logging.getLogger(name).setLevel(logging.ERROR)  # and of what torch 2.13 has deprecated
    from torchao.optim import AdamW8bit  # type: ignore[import-untyped]

    optimizer: Optimizer = AdamW8bit(groups, **options)
    return optimizer


def is_decayed(name: str, recipe: Recipe) -> bool:
    *_, owner, kind = name.split(".")
    if "norm" in owner:
        return "norms" not in recipe.undecayed
    if kind == "bias":
        return "biases" not in recipe.undecayed
    return owner != "embedding" or "embeddings" not in recipe.undecayed


def optimizer_step(optimizer: Optimizer) -> None:
    """torchao compiles its 8-bit step, which takes minutes on a CPU and is not worth it there."""
    on_cpu = optimizer.param_groups[0]["params"][0].device.type == "cpu"
    if on_cpu and not isinstance(optimizer, AdamW):
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
    else:
        optimizer.step()


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def has_moments(optimizer: Optimizer) -> bool:
    """False before the first step."""
    return all(value in optimizer.state for group in optimizer.param_groups for value in group["params"])


def create_moments(optimizer: Optimizer) -> None:
    """PyTorch allocates them in the first step: here one with learning rate zero, for one parameter after the other,
    because all gradients at once may not fit into memory."""
    set_learning_rate(optimizer, 0.0)
    for value in [value for group in optimizer.param_groups for value in group["params"]]:
        if value not in optimizer.state:
            value.grad = torch.zeros_like(value)
            optimizer_step(optimizer)
            value.grad = None


def set_step_count(optimizer: Optimizer, steps: int) -> None:
    """For Adam's bias correction."""
    for state in optimizer.state.values():
        state["step"].fill_(steps)
