"""fp8 GEMMs, twice as fast as bf16 ones on the GPUs that have them (arXiv 2209.05433).

Activations and weights become e4m3 (four significant bits), gradients e5m2 (three, and more range), with one scale per
tensor, chosen for each tensor at use so that its largest element is near the format's largest. Sums are in fp32.

Scales are powers of two. Then scaling is exact in any precision, an element is rounded once, and to the same 8 bits
whatever its neighbours are (unless it is far below them): so compiled and eager code, and layouts that shard a tensor
differently, round alike. The price is at most half of the range at its lower end.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.parallel.tensor_parallel import all_gather, reduce_scatter
from trimaran.spec import Mistake

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MIN_AMAX = 2.0**-100  # of a tensor, zeros included: keeps its scale finite in bf16
EXPONENT_MASK = 0x7F800000  # the exponent bits of an fp32 number
MIN_CAPABILITY = (8, 9)  # NVIDIA's first cards with fp8 tensor cores


class Fp8Tensor(NamedTuple):
    data: Tensor
    scale: Tensor  # data x scale is the value: a power of two, in fp32 and on the device


def scale_for(x: Tensor, dtype: torch.dtype, group: Any = None) -> Tensor:
    """The smallest scale with which all of x, and of its other shards in the group, fits this dtype."""
    amax = torch.linalg.vector_norm(x, torch.inf).float().clamp(min=MIN_AMAX)
    if group is not None:
        dist.all_reduce(amax, dist.ReduceOp.MAX, group=group)
    inverse = torch.finfo(dtype).max / amax
    return inverse.view(torch.int32).bitwise_and(EXPONENT_MASK).view(torch.float32).reciprocal()


def quantize(x: Tensor, dtype: torch.dtype, scale: Tensor) -> Fp8Tensor:
    return Fp8Tensor((x * scale.reciprocal()).to(dtype, memory_format=torch.contiguous_format), scale)


def scaled_mm(a: Fp8Tensor, b: Fp8Tensor, dtype: torch.dtype, bias: Tensor | None = None, fast: bool = False) -> Tensor:
    """a @ b.t() + bias, both row-major, as the GPU needs it. `fast`: accumulate with a little less than fp32, which is
    good enough for a forward pass."""
    # Compilers of early 2026 cannot trace the public torch.nn.functional.scaled_mm (PyTorch's issue 180604).
    return torch._scaled_mm(a.data, b.data.t(), a.scale, b.scale, bias, out_dtype=dtype, use_fast_accum=fast)


def transpose(x: Fp8Tensor) -> Fp8Tensor:
    """In memory."""
    return Fp8Tensor(x.data.t().contiguous(), x.scale)


@torch.library.custom_op("trimaran::transpose_copy", mutates_args=())
def transpose_copy(x: Tensor) -> Tensor:
    """x.t(), contiguous, as an operation of its own, which no compiler fuses with others: PyTorch's would write the
    transpose of a norm's output from the kernel of the norm's backward pass, which works row by row: one byte here, one
    there, 1.1 ms on an H200 for 67 MB. Our kernel works by tiles."""
    return x.t().contiguous()


@transpose_copy.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], x.shape[0])


@transpose_copy.register_kernel("cuda")
def _(x: Tensor) -> Tensor:
    from trimaran.engine.kernels.transpose_triton import transpose_copy_tiled  # Triton comes with CUDA builds only

    return transpose_copy_tiled(x)


class Fp8Matmul(torch.autograd.Function):
    """x @ weight.t() + bias, with forward and both backward GEMMs in fp8. Saved for the backward pass: x in fp8, and
    the weight as it is, which exists anyway; fp8 copies would be one per micro batch in flight, and whole under ZeRO 3.

    With a group, x is a shard of the tokens: it is quantized, then gathered, and only the shard is saved. `normed`: x
    is the output of a norm, whose transpose needs a kernel of its own: see `transpose_copy`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, group: Any = None, normed: bool = False
    ) -> Tensor:
        x8 = quantize(x, E4M3, scale_for(x, E4M3, group))
        weight8 = quantize(weight, E4M3, scale_for(weight, E4M3))
        ctx.save_for_backward(x8.data, x8.scale, weight, weight8.scale)
        ctx.group, ctx.has_bias, ctx.normed = group, bias is not None, normed
        return scaled_mm(gather_tokens(x8, group), weight8, x.dtype, bias, fast=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        data, scale, weight, weight_scale = ctx.saved_tensors
        grad8 = quantize(grad, E5M2, scale_for(grad, E5M2))
        grad_x = scaled_mm(grad8, transpose(quantize(weight, E4M3, weight_scale)), grad.dtype)
        if ctx.group is not None:
            grad_x = reduce_scatter(grad_x, ctx.group)
        x8 = gather_tokens(Fp8Tensor(data, scale), ctx.group)
        x8 = Fp8Tensor(transpose_copy(x8.data), scale) if ctx.normed else transpose(x8)
        grad_bias = grad.sum(0) if ctx.has_bias else None
        return grad_x, scaled_mm(transpose(grad8), x8, weight.dtype), grad_bias, None, None


def gather_tokens(x: Fp8Tensor, group: Any) -> Fp8Tensor:
    """All tokens from shards with the same scale."""
    if group is None:
        return x
    return Fp8Tensor(all_gather(x.data.view(torch.uint8), group).view(x.data.dtype), x.scale)


def check_fp8_support(device: torch.device) -> None:
    """A CPU computes in fp8 too: slowly, to learn and to test."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        has, needed = (".".join(map(str, of)) for of in (torch.cuda.get_device_capability(device), MIN_CAPABILITY))
        raise Mistake(
            f"{torch.cuda.get_device_name(device)} has no fp8 GEMMs: its compute capability is {has}, and they"
            f" begin with {needed}; the nearest that works: precision bf16."
        )
