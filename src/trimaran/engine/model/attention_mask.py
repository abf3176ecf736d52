"""The attention mask of a micro batch, with ALiBi's bias, as PyTorch's attention takes it."""

import math

import torch
from torch import Tensor

from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Model


def attention_mask(
    model: Model, axis: TensorAxis, like: Tensor, documents: Tensor | None, prefix: Tensor | None, rows: int
) -> Tensor | None:
    """None: plain causal attention, for which fused kernels need no mask. Otherwise bool, or a bias on the scores.

    `documents`: [rows, seq] index of each token's document, where attention does not cross them. `prefix`: [rows, seq]
    whether a token belongs to a prefix, which attends to itself in both directions. `like`: gives dtype and device.
    """
    if model.position != "alibi" and documents is None and prefix is None:
        return None
    seq = model.seq_len
    places = torch.arange(seq, device=like.device)
    allowed = (places[None, :] <= places[:, None])[None]  # [1, query, key]
    if prefix is not None:
        allowed = allowed | prefix.bool()[:, None, :]
    if documents is not None:
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])
    if model.position != "alibi":
        return allowed[:, None].expand(rows, 1, seq, seq)
    distance = (places[None, :] - places[:, None]).abs()  # inside a prefix also forward: the bias is symmetric there
    local = axis.shard_size(model.heads)
    slopes = torch.tensor(alibi_slopes(model.heads)[axis.rank * local :][:local], device=like.device)
    bias = (-slopes[:, None, None] * distance).to(like.dtype)
    return torch.where(allowed[:, None], bias[None], -torch.inf).expand(rows, local, seq, seq)


def alibi_slopes(heads: int) -> list[float]:
    """Of Press et al. (arXiv 2108.12409): a geometric series for a power of two; others interleave the next one's."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
