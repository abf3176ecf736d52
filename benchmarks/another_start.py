"""`trimaran`, but the weights of the layers' products start a little off, at random and by as much as rounding to e4m3
moves them: a control for fp8_loss.py, which runs it. What this does to a loss is not done by training in 8 bits.

    python benchmarks/another_start.py train tiny --steps 10
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimaran.cli.main import run
from trimaran.cost.tensors import NamedTensor
from trimaran.engine.model.init_weights import fill
from trimaran.engine.parallel import zero

MOVED = (".qkv.weight", ".out.weight", ".up.weight", ".down.weight")
APART = 0.026  # of a number: the root of the mean square of what rounding does to normal ones
SEED = 1


def fill_apart(generator: torch.Generator, local: Tensor, tensor: NamedTensor, *where: Any) -> None:
    fill(local, tensor, *where)
    if tensor.name.endswith(MOVED):
        local.mul_(1 + APART * torch.randn(local.shape, generator=generator).to(local.device))


def main() -> None:
    zero.fill = partial(fill_apart, torch.Generator().manual_seed(SEED))  # type: ignore[assignment]
    run()


if __name__ == "__main__":
    main()
