"""AdamW (arXiv 1711.05101) over many tensors in one kernel, in Triton: a program has a chunk of one of them."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

CHUNK, WARPS = 2048, 8
ALIGNED = 16  # bytes and elements of which addresses and sizes usually are multiples: allows vector loads


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _fused_adamw_kernel(  # type: ignore[no-untyped-def]
    tensors, chunks, constants, factor, grad_like, copy_like, beta1, beta2, eps,
    copies: tl.constexpr, aligned: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """A row of `tensors`: addresses of value, moments, gradient and copy, size, row of `constants`. Of `chunks`: row of
    `tensors`, index of the chunk. Of `constants`: factor of weight decay, step size, second moment's correction."""
    row = tensors + 7 * tl.load(chunks + 2 * tl.program_id(0)).to(tl.int64)
    at = tl.load(chunks + 2 * tl.program_id(0) + 1).to(tl.int64) * chunk + tl.arange(0, chunk)
    mask = at < tl.multiple_of(tl.load(row + 5), aligned)
    of_group = constants + 3 * tl.load(row + 6)
    value = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), aligned)
    exp_avg = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), aligned)
    exp_avg_sq = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), aligned)
    grad = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(grad_like.dtype.element_ty)), aligned)
    g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32) * tl.load(factor)
    m = beta1 * tl.load(exp_avg + at, mask=mask, other=0.0) + (1 - beta1) * g
    s = beta2 * tl.load(exp_avg_sq + at, mask=mask, other=0.0) + (1 - beta2) * g * g
    v = tl.load(value + at, mask=mask, other=0.0)
    v = v * tl.load(of_group) - tl.load(of_group + 1) * m / (tl.sqrt(s) * tl.load(of_group + 2) + eps)
    tl.store(exp_avg + at, m, mask=mask)
    tl.store(exp_avg_sq + at, s, mask=mask)
    tl.store(value + at, v, mask=mask)
    if copies:
        copy = tl.multiple_of(tl.load(row + 4).to(tl.pointer_type(copy_like.dtype.element_ty)), aligned)
        tl.store(copy + at, v.to(copy_like.dtype.element_ty), mask=mask)


def chunk_table(sizes: list[int], device: torch.device) -> Tensor:
    """What each program works on: which tensor, which chunk of it."""
    counts = torch.tensor([-(-size // CHUNK) for size in sizes])
    which = torch.arange(len(sizes)).repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.stack((which, torch.arange(len(which)) - first), 1).to(device, torch.int32)


def fused_adamw(
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, int]],
    chunks: Tensor,
    constants: Tensor,
    factor: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Each row: value, moments, gradient, a copy of the value in another precision, and its row of constants. All
    gradients have one dtype, and so have all copies, or there are none."""
    table = [
        (*(0 if t is None else t.data_ptr() for t in (value, *others)), value.numel(), group)
        for value, *others, group in rows
    ]
    tensors = torch.tensor(table, dtype=torch.int64, pin_memory=chunks.is_cuda).to(chunks.device, non_blocking=True)
    aligned = all(number % ALIGNED == 0 for *row, _ in table for number in row)
    _, _, _, grad, copy, _ = rows[0]
    _fused_adamw_kernel[(len(chunks),)](
        tensors, chunks, constants, factor, grad, grad if copy is None else copy, *betas, eps,
        copy is not None, ALIGNED if aligned else 1, CHUNK, num_warps=WARPS,
    )  # fmt: skip
