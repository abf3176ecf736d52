"""A matrix of bytes transposed by tiles, in Triton."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

SIDE = 128  # of a tile: whole cache lines on both sides
WARPS = 8


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _turn(source, target, rows, columns, side: tl.constexpr):  # type: ignore[no-untyped-def]
    """64-bit places: there are matrices of more than 2**31 bytes."""
    r = tl.program_id(0).to(tl.int64) * side + tl.arange(0, side)
    c = tl.program_id(1).to(tl.int64) * side + tl.arange(0, side)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    tile = tl.load(source + r[:, None] * columns + c[None, :], mask=inside)
    tl.store(target + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(inside))


def turn(x: Tensor) -> Tensor:
    rows, columns = x.shape
    turned = x.new_empty(columns, rows)
    tiles = -(-rows // SIDE), -(-columns // SIDE)
    _turn[tiles](x.contiguous().view(torch.uint8), turned.view(torch.uint8), rows, columns, SIDE, num_warps=WARPS)
    return turned
