"""AdamW on a GPU in one pass over the memory: what clipping, PyTorch's fused AdamW and the cast to the compute
precision do in three. Gradients may be in the precision they were computed in."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trimaran.engine.weights import Slot


class OnePassAdam(Optimizer):
    """Moments and steps are kept under the names that PyTorch's AdamW gives them."""

    def __init__(self, groups: list[dict[str, Any]], slots: Iterable[Slot], **options: Any) -> None:
        super().__init__(groups, options)
        self.slots = {slot.value: slot for slot in slots}
        self.factor = torch.ones((), device=next(iter(self.slots)).device)  # by which gradients are multiplied
        steps = torch.zeros(())  # on the host, so that corrections are computed there
        for value in self.slots:
            moments = {"exp_avg": torch.zeros_like(value), "exp_avg_sq": torch.zeros_like(value)}
            self.state[value] = {"step": steps, **moments}
        self.steps = steps
        beta1, beta2 = options["betas"]
        self.update = torch.compile(update_of(beta1, beta2, options["eps"]), fullgraph=True, dynamic=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            numbers = self._numbers(group)
            for value in group["params"]:
                slot, state = self.slots[value], self.state[value]
                copy = None if slot.parameter is value or slot.sharded else slot.parameter
                tensors = (value, state["exp_avg"], state["exp_avg_sq"], slot.gradient, copy)
                self.update(*(None if t is None else t.detach().flatten() for t in tensors), self.factor, *numbers)

    def _numbers(self, group: dict[str, Any]) -> list[Tensor]:
        """What decay leaves of a value, the length of a step and the scale of the second moments' roots."""
        (beta1, beta2), rate, steps = group["betas"], group["lr"], int(self.steps)
        scales = 1 - rate * group["weight_decay"], rate / (1 - beta1**steps), (1 - beta2**steps) ** -0.5
        return [torch.full((), scale, device=self.factor.device) for scale in scales]


def update_of(beta1: float, beta2: float, eps: float) -> Callable[..., None]:
    """Of one tensor, laid out flat; arXiv 1711.05101."""

    def update(
        value: Tensor,
        mean: Tensor,
        square: Tensor,
        gradient: Tensor,
        copy: Tensor | None,
        factor: Tensor,
        kept: Tensor,
        length: Tensor,
        root_scale: Tensor,
    ) -> None:
        gradient = gradient.float() * factor
        mean.copy_(beta1 * mean + (1 - beta1) * gradient)
        square.copy_(beta2 * square + (1 - beta2) * gradient * gradient)
        value.copy_(value * kept - length * mean / (square.sqrt() * root_scale + eps))
        if copy is not None:
            copy.copy_(value)

    return update
