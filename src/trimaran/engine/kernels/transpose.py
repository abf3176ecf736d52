"""8-bit matrices transposed in memory: an operation of its own, which no compiler fuses with others.

Inside a compiled layer PyTorch's compiler writes the transpose of a norm's output from the kernel of the norm's
backward pass, which works row by row: one byte here, one there, 1.1 ms on an H200 for 67 MB. Our kernel works by tiles.
"""

import torch
from torch import Tensor


@torch.library.custom_op("trimaran::transpose_copy", mutates_args=())
def transpose_copy(x: Tensor) -> Tensor:
    """x.t(), contiguous."""
    return x.t().contiguous()


@transpose_copy.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], x.shape[0])


@transpose_copy.register_kernel("cuda")
def _(x: Tensor) -> Tensor:
    from trimaran.engine.kernels.transpose_triton import transpose_copy_tiled  # Triton comes with CUDA builds only

    return transpose_copy_tiled(x)
