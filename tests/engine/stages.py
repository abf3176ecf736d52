"""Whole models in one process, with random weights also where initial ones are zero or one."""

import torch
from torch import Tensor

from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Model


def whole_stage(model: Model, weights: dict[str, Tensor] | None = None, dtype: torch.dtype = torch.float64) -> Stage:
    """The model as a single stage, with these weights or random ones."""
    with torch.device("meta"):
        stage = Stage(model, TensorAxis(), range(model.layers), first=True, last=True).to(dtype)
    stage.to_empty(device="cpu")
    stage.load_state_dict(random_weights(stage) if weights is None else weights)
    return stage


def random_weights(module: torch.nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Norms around one, the rest around zero, large enough that every part of the model matters."""
    stream = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=stream, dtype=torch.float64)
        is_norm = value.dim() == 1 and name.endswith("weight")
        found[name] = (1.0 + 0.2 * noise if is_norm else 0.2 * noise).to(value.dtype)
    return found


def random_tokens(model: Model, rows: int, seed: int = 0) -> Tensor:
    return torch.randint(model.vocab, (rows, model.seq_len), generator=torch.Generator().manual_seed(seed))
