"""AdamW on a GPU in one pass over the memory: what clipping, PyTorch's fused AdamW and the cast to the compute
precision do in three. Gradients may be in the precision they were computed in."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimaran.engine.parallel.zero import Slot


class OnePassAdam(Optimizer):
    """Moments and steps are kept under the names that PyTorch's AdamW gives them."""

    def __init__(self, groups: list[dict[str, Any]], slots: Iterable[Slot], **options: Any) -> None:
        from trimaran.engine.kernels.fused_adamw_triton import pieces_of  # its language is there where CUDA is

        super().__init__(groups, options)
        self.slots = {slot.value: slot for slot in slots}
        device = next(iter(self.slots)).device
        self.factor = torch.ones((), device=device)  # by which gradients are multiplied
        steps = torch.zeros(())  # on the host, so that corrections are computed there
        for value in self.slots:
            moments = {"exp_avg": torch.zeros_like(value), "exp_avg_sq": torch.zeros_like(value)}
            self.state[value] = {"step": steps, **moments}
        self.steps = steps
        self.pieces = pieces_of([value.numel() for group in self.param_groups for value in group["params"]], device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        from trimaran.engine.kernels.fused_adamw_triton import adam

        self.steps += 1
        rows = [self._row(value, index) for index, group in enumerate(self.param_groups) for value in group["params"]]
        numbers = torch.tensor([self._numbers(group) for group in self.param_groups], pin_memory=True)
        numbers = numbers.to(self.factor.device, non_blocking=True)
        adam(rows, self.pieces, numbers, self.factor, self.defaults["betas"], self.defaults["eps"])

    def _row(self, value: nn.Parameter, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, int]:
        """Value, moments, gradient, copy in the compute precision, and which group it is in."""
        slot, state = self.slots[value], self.state[value]
        copy = None if slot.parameter is value or slot.sharded else slot.parameter
        return value, state["exp_avg"], state["exp_avg_sq"], slot.gradient.contiguous(), copy, group

    def _numbers(self, group: dict[str, Any]) -> tuple[float, float, float]:
        """What decay leaves of a value, the length of a step and the scale of the second moments' roots."""
        (beta1, beta2), rate, steps = group["betas"], group["lr"], int(self.steps)
        return 1 - rate * group["weight_decay"], rate / (1 - beta1**steps), (1 - beta2**steps) ** -0.5
