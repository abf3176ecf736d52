"""GELU in its tanh form, arXiv 1606.08415."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TWICE_ROOT = 2 * math.sqrt(2 / math.pi)


def gelu(x: Tensor) -> Tensor:
    """Compiled it is written with a sigmoid, since (1 + tanh z) / 2 = sigmoid(2z): a GPU's tanh is slower than the
    memory that x comes from."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    wide = x.float()
    return (wide * torch.sigmoid(TWICE_ROOT * wide * (1 + 0.044715 * wide * wide))).to(x.dtype)
