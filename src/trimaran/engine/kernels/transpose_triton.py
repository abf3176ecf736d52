"""A matrix of bytes transposed by tiles, in Triton: see fp8.py."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

TILE = 128  # rows and columns: whole cache lines on both sides
WARPS = 8


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _transpose_kernel(source, target, rows, columns, tile_size: tl.constexpr):  # type: ignore[no-untyped-def]
    """64-bit offsets: there are matrices of more than 2**31 bytes."""
    r = tl.program_id(0).to(tl.int64) * tile_size + tl.arange(0, tile_size)
    c = tl.program_id(1).to(tl.int64) * tile_size + tl.arange(0, tile_size)
    mask = (r[:, None] < rows) & (c[None, :] < columns)
    tile = tl.load(source + r[:, None] * columns + c[None, :], mask=mask)
    tl.store(target + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(mask))


def transpose_copy_tiled(x: Tensor) -> Tensor:
    rows, columns = x.shape
    result = x.new_empty(columns, rows)
    grid = -(-rows // TILE), -(-columns // TILE)
    source, target = x.contiguous().view(torch.uint8), result.view(torch.uint8)
    _transpose_kernel[grid](source, target, rows, columns, TILE, num_warps=WARPS)
    return result
