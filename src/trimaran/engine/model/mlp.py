"""The MLP of a layer: up, GELU (tanh form, arXiv 1606.08415), down; or gated (SwiGLU, arXiv 2002.05202)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimaran.engine.model.linear import ColumnParallelLinear, RowParallelLinear
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Model


class MLP(nn.Module):
    """When gated, gate and up rows of the weight are interleaved, so that one GEMM computes both and a tensor rank's
    shard holds whole pairs."""

    def __init__(self, model: Model, axis: TensorAxis, fp8: bool) -> None:
        super().__init__()
        self.gated = model.mlp == "swiglu"
        width = model.ffn_hidden * (2 if self.gated else 1)
        self.up = ColumnParallelLinear(model.hidden, width, model.bias, axis, fp8)
        self.down = RowParallelLinear(model.ffn_hidden, model.hidden, model.bias, axis, fp8)

    @property
    def consumers(self) -> int:
        """GEMMs that read the input in a compiled layer."""
        return 2 if self.gated else 1

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """`inputs`: [tokens, hidden], once or once for each consumer."""
        if not self.gated:
            return self.down(gelu(self.up(inputs[0])))
        if len(inputs) == 1:
            gate, up = self.up(inputs[0]).unflatten(-1, (-1, 2)).unbind(-1)
        else:
            gate, up = (self._half(x, index) for index, x in enumerate(inputs))
        return self.down(F.silu(gate) * up)

    def _half(self, x: Tensor, index: int) -> Tensor:
        """Only gates or only ups, by a GEMM of its own: contiguous outputs are read with vector loads."""
        weight, bias = (
            whole if whole is None else whole.unflatten(0, (-1, 2))[:, index]
            for whole in (self.up.weight, self.up.bias)
        )
        return F.linear(x, weight, bias)


def gelu(x: Tensor) -> Tensor:
    """Compiled, it is written with a sigmoid, since (1 + tanh z) / 2 = sigmoid(2z): tanh on a GPU is slower than
    reading x from memory."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    wide = x.float()
    return (wide * torch.sigmoid(2 * math.sqrt(2 / math.pi) * wide * (1 + 0.044715 * wide * wide))).to(x.dtype)
