"""AdamW (arXiv 1711.05101) over many tensors in one kernel, in Triton: a program has a piece of one of them."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

PIECE, WARPS = 2048, 8
ALIGNED = 16  # bytes and numbers of which places and sizes usually are multiples, so that many are read at once


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _adam(  # type: ignore[no-untyped-def]
    tensors, pieces, numbers, factor, gradient_like, copy_like, beta1, beta2, eps,
    copies: tl.constexpr, aligned: tl.constexpr, piece: tl.constexpr,
):  # fmt: skip
    """Of `tensors` a row is: places in memory of value, moments, gradient and copy, size, row of `numbers`. Of `pieces`
    it is: row of `tensors`, number of the piece. Of `numbers`: what decay leaves, a step's length, the roots' scale."""
    row = tensors + 7 * tl.load(pieces + 2 * tl.program_id(0)).to(tl.int64)
    at = tl.load(pieces + 2 * tl.program_id(0) + 1).to(tl.int64) * piece + tl.arange(0, piece)
    inside = at < tl.multiple_of(tl.load(row + 5), aligned)
    of_group = numbers + 3 * tl.load(row + 6)
    value = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), aligned)
    mean = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), aligned)
    square = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), aligned)
    gradient = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(gradient_like.dtype.element_ty)), aligned)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) * tl.load(factor)
    m = beta1 * tl.load(mean + at, mask=inside, other=0.0) + (1 - beta1) * g
    s = beta2 * tl.load(square + at, mask=inside, other=0.0) + (1 - beta2) * g * g
    v = tl.load(value + at, mask=inside, other=0.0)
    v = v * tl.load(of_group) - tl.load(of_group + 1) * m / (tl.sqrt(s) * tl.load(of_group + 2) + eps)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, s, mask=inside)
    tl.store(value + at, v, mask=inside)
    if copies:
        copy = tl.multiple_of(tl.load(row + 4).to(tl.pointer_type(copy_like.dtype.element_ty)), aligned)
        tl.store(copy + at, v.to(copy_like.dtype.element_ty), mask=inside)


def pieces_of(sizes: list[int], device: torch.device) -> Tensor:
    """Where each program works: which tensor, which piece of it."""
    counts = torch.tensor([-(-size // PIECE) for size in sizes])
    which = torch.arange(len(sizes)).repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.stack((which, torch.arange(len(which)) - first), 1).to(device, torch.int32)


def adam(
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, int]],
    pieces: Tensor,
    numbers: Tensor,
    factor: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Of each row: value, moments, gradient, a copy of the value in another precision, and its row of numbers. All
    gradients have the same precision, and all copies, or none has one."""
    places = [
        (*(0 if t is None else t.data_ptr() for t in (value, *others)), value.numel(), group)
        for value, *others, group in rows
    ]
    tensors = torch.tensor(places, dtype=torch.int64, pin_memory=pieces.is_cuda).to(pieces.device, non_blocking=True)
    aligned = all(number % ALIGNED == 0 for *row, _ in places for number in row)
    _, _, _, gradient, copy, _ = rows[0]
    _adam[(len(pieces),)](
        tensors, pieces, numbers, factor, gradient, gradient if copy is None else copy, *betas, eps,
        copy is not None, ALIGNED if aligned else 1, PIECE, num_warps=WARPS,
    )  # fmt: skip
