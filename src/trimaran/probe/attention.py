"""Seconds of causal attention, forward alone and with its backward pass."""

import torch
import torch.nn.functional as F

from trimaran.probe.gemm import DTYPES
from trimaran.probe.measured import Attention
from trimaran.probe.timing import Stopwatch
from trimaran.spec import Model
from trimaran.spec.cluster import Precision

CUDA_SEQUENCES = 8


def attention(watch: Stopwatch, model: Model, seq: int, precision: Precision) -> Attention:
    """All heads of the model over one sequence; on a GPU over several, which one would not fill."""
    device, dtype = watch.world.device, DTYPES[precision]
    batch = CUDA_SEQUENCES if device.type == "cuda" else 1
    shape = (batch, model.heads, seq, model.head_dim)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    upstream = torch.randn(shape, device=device, dtype=dtype)

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    both = watch.seconds(lambda: torch.autograd.grad(forward(), (query, key, value), upstream))
    with torch.no_grad():
        alone = watch.seconds(forward)
    return Attention(
        batch=batch,
        heads=model.heads,
        seq=seq,
        head_dim=model.head_dim,
        forward_seconds=alone,
        both_seconds=max(both, alone),
    )
