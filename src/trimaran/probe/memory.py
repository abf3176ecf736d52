"""Memory: how fast it is read and written, and how much of a GPU's no tensor gets."""

import torch
import torch.nn.functional as F

from trimaran.probe.attention import CUDA_SEQUENCES
from trimaran.probe.gemm import DTYPES
from trimaran.probe.measured import Traffic
from trimaran.probe.timing import Stopwatch
from trimaran.spec import Model
from trimaran.spec.cluster import Precision

GIB = 2**30
CPU_BYTES, CUDA_BYTES = 2**26, 2**30  # of one array: more than caches hold


def traffic(watch: Stopwatch, model: Model, precision: Precision) -> Traffic:
    device = watch.world.device
    size = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    source, other, target = (torch.ones(size // 4, device=device) for _ in range(3))
    return Traffic(
        copy_gb_per_s=2 * size / watch.seconds(lambda: target.copy_(source)) / 1e9,
        triad_gb_per_s=3 * size / watch.seconds(lambda: torch.add(source, other, alpha=0.5, out=target)) / 1e9,
        tokens=_tokens(watch, model),
        hidden=model.hidden,
        elementwise_seconds=_elementwise(watch, model, precision),
    )


def _tokens(watch: Stopwatch, model: Model) -> int:
    """One sequence; on a GPU several, so that its caches do not hold them."""
    return model.seq_len * (CUDA_SEQUENCES if watch.world.device.type == "cuda" else 1)


def _elementwise(watch: Stopwatch, model: Model, precision: Precision) -> float:
    """What a layer does between its products: two norms, two residual sums, the activation of four times the width."""
    device, dtype = watch.world.device, DTYPES[precision]
    tokens = _tokens(watch, model)
    stream = torch.randn(tokens, model.hidden, device=device, dtype=dtype, requires_grad=True)
    inner = torch.randn(tokens, 4 * model.hidden, device=device, dtype=dtype, requires_grad=True)
    scale = torch.ones(model.hidden, device=device, dtype=dtype, requires_grad=True)
    upstream = [torch.randn_like(stream), torch.randn_like(inner)]

    def both_passes() -> object:
        middle = stream + F.layer_norm(stream, (model.hidden,), scale, scale)
        end = middle + F.layer_norm(middle, (model.hidden,), scale, scale)
        return torch.autograd.grad([end, F.gelu(inner)], (stream, inner, scale), upstream)

    return watch.seconds(both_passes)


def context(device: torch.device) -> float:
    """GiB of a GPU in use, but not by the allocator. It supposes that nobody else uses the card."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free - torch.cuda.memory_reserved(device)) / GIB
