"""Adam, in the three kinds a Job can name: PyTorch's plain and fused ones and torchao's with 8-bit moments."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from trimaran.engine.kernels.fused_adamw import OnePassAdam
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import Slot, one_pass
from trimaran.spec import Job, Recipe

MOMENTS = ("exp_avg", "exp_avg_sq")


def optimizer_of(job: Job, slots: Iterable[Slot], world: World) -> Optimizer:
    """Two groups: what decays, and what the recipe leaves out."""
    recipe = job.recipe
    slots = list(slots)
    decaying = [slot.value for slot in slots if decays(slot.tensor.name, recipe)]
    steady = [slot.value for slot in slots if not decays(slot.tensor.name, recipe)]
    groups = [
        {"params": values, "weight_decay": decay}
        for values, decay in ((decaying, recipe.weight_decay), (steady, 0.0))
        if values
    ]
    options: dict[str, Any] = {"lr": recipe.learning_rate, "betas": recipe.betas, "eps": recipe.eps}
    if job.optimizer == "adam-8bit":
        return eight_bit_adam(groups, **options)
    if one_pass(job, world):
        return OnePassAdam(groups, slots, **options)
    return AdamW(groups, **options, fused=job.optimizer == "fused-adam")


def eight_bit_adam(groups: Iterable[Any], **options: Any) -> Optimizer:
    for name in ("torchao", "torch.utils._pytree"):  # they tell of every extension this machine cannot load,
        logging.getLogger(name).setLevel(logging.ERROR)  # and that torch 2.13 has a better way for one of them
    from torchao.optim import AdamW8bit  # type: ignore[import-untyped]

    found: Optimizer = AdamW8bit(groups, **options)
    return found


def decays(name: str, recipe: Recipe) -> bool:
    *_, owner, kind = name.split(".")
    if "norm" in owner:
        return "norms" not in recipe.undecayed
    if kind == "bias":
        return "biases" not in recipe.undecayed
    return owner != "embedding" or "embeddings" not in recipe.undecayed


def take_step(optimizer: Optimizer) -> None:
    """torchao compiles its 8-bit step, which takes minutes on a CPU and is not worth it there."""
    on_cpu = optimizer.param_groups[0]["params"][0].device.type == "cpu"
    if on_cpu and not isinstance(optimizer, AdamW):
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
    else:
        optimizer.step()


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def create_moments(optimizer: Optimizer) -> None:
    """PyTorch makes them in the first step: here in one that moves nothing, for one value after the other, because all
    gradients at once may be more than there is memory for."""
    set_rate(optimizer, 0.0)
    for value in [value for group in optimizer.param_groups for value in group["params"]]:
        if value not in optimizer.state:
            value.grad = torch.zeros_like(value)
            take_step(optimizer)
            value.grad = None


def set_steps(optimizer: Optimizer, steps: int) -> None:
    """How many steps the moments have seen, which Adam corrects them for."""
    for state in optimizer.state.values():
        state["step"].fill_(steps)
