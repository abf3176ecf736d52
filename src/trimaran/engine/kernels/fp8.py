"""Products of 8-bit numbers, twice as fast as those of 16 bits on the GPUs that have them (arXiv 2209.05433).

Activations and weights become e4m3 (four significant bits), gradients e5m2 (three, and more range); every tensor is
first scaled so that its largest number is near the largest of the format. Products add up in fp32.

Scales are powers of two. Then scaling is exact in any precision, a number is rounded once, and to the same 8 bits
whatever its neighbours are (unless it is far below them): so compiled and other code, and layouts that cut a tensor
differently, round alike. The price is half of the range at its lower end, at most.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.kernels.transpose import turned
from trimaran.engine.parallel.tensor_parallel import gathered, scattered
from trimaran.spec import Mistake

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
LEAST = 2.0**-100  # of a tensor's largest number, zero included: its scale is finite in bf16
EXPONENT = 0x7F800000  # the bits of an fp32 number that are its power of two
CAPABILITY = (8, 9)  # NVIDIA's first cards with 8-bit products


class EightBits(NamedTuple):
    numbers: Tensor
    unit: Tensor  # what they count: a power of two, in fp32 and on the device

    @property
    def turned(self) -> "EightBits":
        """Transposed in memory."""
        return EightBits(self.numbers.t().contiguous(), self.unit)


def unit_for(x: Tensor, kind: torch.dtype, group: Any = None) -> Tensor:
    """The smallest unit in which all of x, and of its other slices in the group, fits into this kind of number."""
    largest = torch.linalg.vector_norm(x, torch.inf).float().clamp(min=LEAST)
    if group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    scale = torch.finfo(kind).max / largest
    return scale.view(torch.int32).bitwise_and(EXPONENT).view(torch.float32).reciprocal()


def counted(x: Tensor, kind: torch.dtype, unit: Tensor) -> EightBits:
    return EightBits((x * unit.reciprocal()).to(kind, memory_format=torch.contiguous_format), unit)


def product(a: EightBits, b: EightBits, dtype: torch.dtype, bias: Tensor | None = None, fast: bool = False) -> Tensor:
    """a @ b.t() + bias: the rows of both lie in one piece, as a GPU wants it. `fast`: sums may be a little shorter than
    fp32, which a forward pass does not feel."""
    # Compilers of early 2026 cannot trace the public torch.nn.functional.scaled_mm (PyTorch's issue 180604).
    return torch._scaled_mm(a.numbers, b.numbers.t(), a.unit, b.unit, bias, out_dtype=dtype, use_fast_accum=fast)


class EightBitProduct(torch.autograd.Function):
    """x @ weight.t() + bias, all three products in 8 bits. Kept for the backward pass: x in 8 bits, and the weight as
    it is, which is there anyway; 8-bit copies would be one for each micro batch in flight, and whole under ZeRO 3.

    With a group, x is a slice of the tokens: it is rounded, then gathered, and only the slice is kept. `normed`: x is a
    norm's result, which needs engine.kernels.transpose."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, group: Any = None, normed: bool = False
    ) -> Tensor:
        values = counted(x, VALUES, unit_for(x, VALUES, group))
        matrix = counted(weight, VALUES, unit_for(weight, VALUES))
        ctx.save_for_backward(values.numbers, values.unit, weight, matrix.unit)
        ctx.group, ctx.has_bias, ctx.normed = group, bias is not None, normed
        return product(whole(values, group), matrix, x.dtype, bias, fast=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        numbers, unit, weight, weight_unit = ctx.saved_tensors
        gradient = counted(grad, GRADIENTS, unit_for(grad, GRADIENTS))
        grad_x = product(gradient, counted(weight, VALUES, weight_unit).turned, grad.dtype)
        if ctx.group is not None:
            grad_x = scattered(grad_x, ctx.group)
        values = whole(EightBits(numbers, unit), ctx.group)
        inputs = EightBits(turned(values.numbers), unit) if ctx.normed else values.turned
        grad_bias = grad.sum(0) if ctx.has_bias else None
        return grad_x, product(gradient.turned, inputs, weight.dtype), grad_bias, None, None


def whole(x: EightBits, group: Any) -> EightBits:
    """All tokens of slices in the same unit."""
    if group is None:
        return x
    return EightBits(gathered(x.numbers.view(torch.uint8), group).view(x.numbers.dtype), x.unit)


def need_eight_bits(device: torch.device) -> None:
    """A CPU computes with 8-bit numbers too: slowly, to learn and to test."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < CAPABILITY:
        has, wanted = (".".join(map(str, of)) for of in (torch.cuda.get_device_capability(device), CAPABILITY))
        raise Mistake(
            f"{torch.cuda.get_device_name(device)} has no 8-bit products: its compute capability is {has}, and they"
            f" begin with {wanted}; the nearest that works: precision bf16."
        )
