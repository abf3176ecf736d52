"""AdamW on a GPU in one pass over the memory: what clipping, PyTorch's fused AdamW and the cast to the compute
precision do in three. Gradients may be in the precision they were computed in."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimaran.engine.parallel.zero import MasterWeight


class FusedAdamW(Optimizer):
    """Moments and step counts have the names that PyTorch's AdamW gives them."""

    def __init__(self, groups: list[dict[str, Any]], masters: Iterable[MasterWeight], **options: Any) -> None:
        from trimaran.engine.kernels.fused_adamw_triton import chunk_table  # Triton comes with CUDA builds only

        super().__init__(groups, options)
        self.masters = {master.value: master for master in masters}
        device = next(iter(self.masters)).device
        self.grad_factor = torch.ones((), device=device)  # gradients are multiplied by it
        self.steps = torch.zeros(())  # on the host, so that bias corrections are computed there
        for value in self.masters:
            moments = {"exp_avg": torch.zeros_like(value), "exp_avg_sq": torch.zeros_like(value)}
            self.state[value] = {"step": self.steps, **moments}
        self.chunks = chunk_table([value.numel() for group in self.param_groups for value in group["params"]], device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        from trimaran.engine.kernels.fused_adamw_triton import fused_adamw

        self.steps += 1
        rows = [self._row(value, index) for index, group in enumerate(self.param_groups) for value in group["params"]]
        constants = torch.tensor([self._constants(group) for group in self.param_groups], pin_memory=True)
        constants = constants.to(self.grad_factor.device, non_blocking=True)
        fused_adamw(rows, self.chunks, constants, self.grad_factor, self.defaults["betas"], self.defaults["eps"])

    def _row(self, value: nn.Parameter, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, int]:
        """Value, moments, gradient, copy in the compute precision, and index of the parameter group."""
        master, state = self.masters[value], self.state[value]
        copy = None if master.parameter is value or master.sharded else master.parameter
        return value, state["exp_avg"], state["exp_avg_sq"], master.gradient.contiguous(), copy, group

    def _constants(self, group: dict[str, Any]) -> tuple[float, float, float]:
        """Factor of weight decay, step size, and the bias correction of the second moment's root."""
        (beta1, beta2), rate, steps = group["betas"], group["lr"], int(self.steps)
        return 1 - rate * group["weight_decay"], rate / (1 - beta1**steps), (1 - beta2**steps) ** -0.5
