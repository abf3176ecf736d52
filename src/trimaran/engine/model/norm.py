"""LayerNorm and RMSNorm. Ours saves its input for the backward pass and nothing else; so does PyTorch's on a GPU, where
it is one kernel, but on a CPU it is five operations, which save two fp32 copies."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimaran.spec import Model

NORM_EPS = 1e-5


def build_norm(model: Model) -> nn.Module:
    kind = RMSNorm if model.norm == "rmsnorm" else nn.LayerNorm
    return kind(model.hidden, eps=NORM_EPS)


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or torch.compiler.is_compiling():
            return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return RMSNormFunction.apply(x, self.weight, self.eps)


class RMSNormFunction(torch.autograd.Function):
    """weight x (x / RMS(x)), computed in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
        ctx.save_for_backward(x, weight, rstd)
        return (wide * rstd).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        normed = x * rstd
        wide = grad.float()
        grad_weight = (wide * normed).flatten(0, -2).sum(0).to(weight.dtype)
        wide = wide * weight
        grad_x = (wide - normed * (wide * normed).mean(-1, keepdim=True)).mul_(rstd)
        return grad_x.to(x.dtype), grad_weight, None
