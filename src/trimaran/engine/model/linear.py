"""The two linear layers of tensor parallelism: one has some of the outputs, the other some of the inputs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimaran.engine.kernels.fp8 import EightBitProduct
from trimaran.engine.parallel.tensor_parallel import TensorAxis, gathered, into_layers, out_of_layers, scattered

NORMED = True  # the input: in all layers it comes out of a norm


class ColumnLinear(nn.Linear):
    """This rank's outputs of a linear layer."""

    def __init__(self, inputs: int, outputs: int, bias: bool, axis: TensorAxis, eight_bits: bool = False) -> None:
        super().__init__(inputs, axis.part(outputs), bias)
        self.axis, self.eight_bits = axis, eight_bits

    def forward(self, x: Tensor) -> Tensor:
        if self.eight_bits:
            if self.axis.cuts_tokens:
                return EightBitProduct.apply(x, self.weight, self.bias, self.axis.group, NORMED)
            return EightBitProduct.apply(into_layers(x, self.axis), self.weight, self.bias, None, NORMED)
        if self.axis.cuts_tokens:
            return GatherLinear.apply(x, self.weight, self.bias, self.axis.group)
        return F.linear(into_layers(x, self.axis), self.weight, self.bias)


class RowLinear(nn.Linear):
    """A linear layer of which this rank has some of the inputs. The bias belongs to the sum, so it is not cut."""

    def __init__(self, inputs: int, outputs: int, bias: bool, axis: TensorAxis, eight_bits: bool = False) -> None:
        super().__init__(axis.part(inputs), outputs, bias)
        self.axis, self.eight_bits = axis, eight_bits

    def forward(self, x: Tensor) -> Tensor:
        if self.axis.size == 1 and not self.eight_bits:
            return F.linear(x, self.weight, self.bias)
        y = EightBitProduct.apply(x, self.weight) if self.eight_bits else F.linear(x, self.weight)
        summed = out_of_layers(y, self.axis)
        return summed if self.bias is None else summed + self.bias


class GatherLinear(torch.autograd.Function):
    """Gather and a linear layer in one, which keeps only its own slice of the input for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(gathered(x, group), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad_weight = grad.t() @ gathered(x, ctx.group)
        grad_bias = grad.sum(0) if ctx.has_bias else None
        return scattered(grad @ weight, ctx.group), grad_weight, grad_bias, None
