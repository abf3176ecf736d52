"""Initial weights: they depend on the seed and the parameter's name, never on the layout.

Every block of rows has a random stream of its own, so a rank draws only the rows it holds, several blocks in parallel.
"""

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trimaran.spec import Model
from trimaran.spec.tensors import VOCABULARY, NamedTensor

STD = 0.02  # GPT-2's, and Megatron's default
BLOCK_ELEMENTS = 2**20  # drawn from one stream


def init_tensor_(local: Tensor, tensor: NamedTensor, offsets: Sequence[int], model: Model, seed: int) -> None:
    """Fill a rank's part of a tensor, which begins at these offsets of the whole."""
    owner, kind = tensor.name.rsplit(".", 2)[-2:]
    if "norm" in owner or kind == "bias":
        local.fill_(0.0 if kind == "bias" else 1.0)
        return
    (row, column), (rows, columns) = offsets, local.shape
    values = normal_rows(tensor.name, tensor.shape[1], seed, row, row + rows)[:, column : column + columns]
    values *= init_std(tensor.name, model)
    if tensor.name in VOCABULARY:
        values[max(0, model.vocab - row) :] = 0.0  # padding is never looked up and has no logits
    local.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def init_std(name: str, model: Model) -> float:
    """Projections into the residual stream start smaller, by the square root of their number (GPT-2)."""
    writes = name.endswith((".attention.out.weight", ".mlp.down.weight"))
    return STD / math.sqrt(2 * model.layers) if writes else STD


def normal_rows(name: str, columns: int, seed: int, begin: int, end: int) -> npt.NDArray[np.float32]:
    """Rows begin..end of an endless standard normal matrix that belongs to this name and seed."""
    block_rows = max(1, BLOCK_ELEMENTS // columns)
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
