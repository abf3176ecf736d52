"""The two linear layers of tensor parallelism: sharded by outputs (column) or by inputs (row)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimaran.engine.kernels.fp8 import Fp8Matmul
from trimaran.engine.parallel.tensor_parallel import TensorAxis, all_gather, enter_tp, exit_tp, reduce_scatter

FOLLOWS_NORM = True  # the input of every column-parallel layer is the output of a norm


class ColumnParallelLinear(nn.Linear):
    """This rank's outputs of a linear layer."""

    def __init__(self, inputs: int, outputs: int, bias: bool, axis: TensorAxis, fp8: bool = False) -> None:
        super().__init__(inputs, axis.shard_size(outputs), bias)
        self.axis, self.fp8 = axis, fp8

    def forward(self, x: Tensor) -> Tensor:
        if self.fp8:
            if self.axis.sequence_parallel:
                return Fp8Matmul.apply(x, self.weight, self.bias, self.axis.group, FOLLOWS_NORM)
            return Fp8Matmul.apply(enter_tp(x, self.axis), self.weight, self.bias, None, FOLLOWS_NORM)
        if self.axis.sequence_parallel:
            return SequenceParallelLinear.apply(x, self.weight, self.bias, self.axis.group)
        return F.linear(enter_tp(x, self.axis), self.weight, self.bias)


class RowParallelLinear(nn.Linear):
    """A linear layer of which this rank has some of the inputs. The bias is added to the sum, so it is not sharded."""

    def __init__(self, inputs: int, outputs: int, bias: bool, axis: TensorAxis, fp8: bool = False) -> None:
        super().__init__(axis.shard_size(inputs), outputs, bias)
        self.axis, self.fp8 = axis, fp8

    def forward(self, x: Tensor) -> Tensor:
        if self.axis.size == 1 and not self.fp8:
            return F.linear(x, self.weight, self.bias)
        y = exit_tp(Fp8Matmul.apply(x, self.weight) if self.fp8 else F.linear(x, self.weight), self.axis)
        return y if self.bias is None else y + self.bias


class SequenceParallelLinear(torch.autograd.Function):
    """All-gather and linear layer in one, which saves only its own shard of the input for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(all_gather(x, group), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad_weight = grad.t() @ all_gather(x, ctx.group)
        grad_bias = grad.sum(0) if ctx.has_bias else None
        return reduce_scatter(grad @ weight, ctx.group), grad_weight, grad_bias, None
