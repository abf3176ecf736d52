"""`trimaran` with perturbed initial weights: those of the layers' GEMMs get noise as large as the rounding error of
e4m3. A control for fp8_loss.py, which runs it: what this does to the loss is not caused by training in fp8.

    python benchmarks/perturbed_start.py train tiny --steps 10
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimaran.cli.main import run
from trimaran.engine.model.init_weights import init_tensor_
from trimaran.engine.parallel import zero
from trimaran.spec.tensors import NamedTensor

PERTURBED = (".qkv.weight", ".out.weight", ".up.weight", ".down.weight")
NOISE = 0.026  # relative: the root mean square error of rounding normally distributed values to e4m3
SEED = 1


def fill_perturbed(generator: torch.Generator, local: Tensor, tensor: NamedTensor, *where: Any) -> None:
    init_tensor_(local, tensor, *where)
    if tensor.name.endswith(PERTURBED):
        local.mul_(1 + NOISE * torch.randn(local.shape, generator=generator).to(local.device))


def main() -> None:
    zero.init_tensor_ = partial(fill_perturbed, torch.Generator().manual_seed(SEED))  # type: ignore[assignment]
    run()


if __name__ == "__main__":
    main()
