"""First values of the weights: they depend on the seed and the parameter's name, never on the layout.

Every block of rows has a random stream of its own, so a rank makes only the rows it holds, several at a time.
"""

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trimaran.cost.tensors import VOCABULARY, NamedTensor
from trimaran.spec import Model

STD = 0.02  # GPT-2's, and Megatron's default
BLOCK_NUMBERS = 2**20  # drawn from one stream


def fill(local: Tensor, tensor: NamedTensor, offsets: Sequence[int], model: Model, seed: int) -> None:
    """Write a rank's part of a tensor, which begins at these offsets of the whole."""
    kind = tensor.name.rsplit(".", 2)[-2:]
    if "norm" in kind[0] or kind[-1] == "bias":
        local.fill_(0.0 if kind[-1] == "bias" else 1.0)
        return
    (row, column), (rows, columns) = offsets, local.shape
    values = normal_rows(tensor.name, tensor.shape[1], seed, row, row + rows)[:, column : column + columns]
    values *= std(tensor.name, model)
    if tensor.name in VOCABULARY:
        values[max(0, model.vocab - row) :] = 0.0  # padding is never looked up and has no logits
    local.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def std(name: str, model: Model) -> float:
    """Layers that write to the residual stream start smaller, by the number of such layers (GPT-2)."""
    writes = name.endswith((".attention.out.weight", ".mlp.down.weight"))
    return STD / math.sqrt(2 * model.layers) if writes else STD


def normal_rows(name: str, columns: int, seed: int, begin: int, end: int) -> npt.NDArray[np.float32]:
    """Rows begin..end of an endless matrix of standard normal numbers that belongs to this name and seed."""
    block_rows = max(1, BLOCK_NUMBERS // columns)
    values = np.empty((end - begin, columns), np.float32)

    def draw(block: int) -> None:
        digest = hashlib.blake2b(f"{seed}/{name}/{block}".encode(), digest_size=16).digest()
        stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        first = block * block_rows
        drawn = stream.standard_normal((min(block_rows, end - first), columns), dtype=np.float32)
        start = max(begin, first)
        values[start - begin : first + len(drawn) - begin] = drawn[start - first :]

    blocks = range(begin // block_rows, math.ceil(end / block_rows)) if end > begin else range(0)
    with ThreadPoolExecutor() as pool:
        list(pool.map(draw, blocks))
    return values
