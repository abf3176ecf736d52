"""8-bit matrices transposed in memory: an operation of its own, which no compiler mixes with others.

Inside a compiled layer PyTorch's compiler writes the transpose of a norm's result from the kernel of the norm's
gradient, which works row by row: one byte here, one there, 1.1 ms on an H200 for 67 MB. Its own kernel goes by tiles.
"""

import torch
from torch import Tensor


@torch.library.custom_op("trimaran::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """x.t(), with its rows in one piece."""
    return x.t().contiguous()


@turned.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], x.shape[0])


@turned.register_kernel("cuda")
def _(x: Tensor) -> Tensor:
    from trimaran.engine.kernels.transpose_triton import turn  # its language is there where CUDA is

    return turn(x)
