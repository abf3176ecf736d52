"""Microbenchmarks of one device, while all other ranks run the same: GEMMs, attention, memory, kernel launches."""

import time

import torch
import torch.nn.functional as F

from trimaran.probe.result import AttentionTiming, GemmShape, GemmTiming, LaunchOverhead, MemoryTraffic
from trimaran.probe.timing import Stopwatch
from trimaran.spec import Model
from trimaran.spec.cluster import Precision

GIB = 2**30
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LARGE_SIDE = 8192  # of a GEMM that fills any device
SMALL_SIDE = 16  # of one that takes no longer than its launch
# Until a GPU's clock has settled below its power limit; then its rate is measured.
WARM_UP_SECONDS, MEASURED_SECONDS = 4.0, 1.0
CUDA_SEQUENCES = 8  # one does not fill a GPU, and stays in its caches
CPU_BYTES, CUDA_BYTES = 2**26, 2**30  # of one array: more than caches hold


def time_gemm(watch: Stopwatch, shape: GemmShape) -> GemmTiming:
    """As a linear layer computes it. Random values, not zeros: a GPU that multiplies zeros draws less power and runs
    faster."""
    device, dtype = watch.world.device, DTYPES[shape.precision]
    inputs = torch.randn(shape.rows, shape.inner, device=device).to(dtype)
    weights = torch.randn(shape.columns, shape.inner, device=device).to(dtype)
    with torch.no_grad():
        seconds = watch.seconds(lambda: F.linear(inputs, weights))
    return GemmTiming(**shape.model_dump(), seconds=seconds)


def sustained_tflops(watch: Stopwatch, precision: Precision) -> float:
    """Of large GEMMs back to back: a GPU at its power limit lowers its clock."""
    device, dtype = watch.world.device, DTYPES[precision]
    a, b = (torch.randn(LARGE_SIDE, LARGE_SIDE, device=device).to(dtype) for _ in range(2))
    with torch.no_grad():
        one = watch.seconds(lambda: F.linear(a, b))
        for seconds in (WARM_UP_SECONDS, MEASURED_SECONDS):
            calls = int(watch.world.max(seconds / one))
            started = time.perf_counter()
            for _ in range(calls):
                F.linear(a, b)
            torch.cuda.synchronize(device)
            took = watch.world.mean(time.perf_counter() - started)
    return 2.0 * LARGE_SIDE**3 * calls / took / 1e12


def time_attention(watch: Stopwatch, model: Model, seq: int, precision: Precision) -> AttentionTiming:
    """Causal, all heads of the model, forward alone and with its backward pass."""
    device, dtype = watch.world.device, DTYPES[precision]
    batch = CUDA_SEQUENCES if device.type == "cuda" else 1
    shape = (batch, model.heads, seq, model.head_dim)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    upstream = torch.randn(shape, device=device, dtype=dtype)

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    both_seconds = watch.seconds(lambda: torch.autograd.grad(forward(), (query, key, value), upstream))
    with torch.no_grad():
        forward_seconds = watch.seconds(forward)
    return AttentionTiming(
        batch=batch,
        heads=model.heads,
        seq=seq,
        head_dim=model.head_dim,
        forward_seconds=forward_seconds,
        both_seconds=max(both_seconds, forward_seconds),
    )


def measure_traffic(watch: Stopwatch, model: Model, precision: Precision) -> MemoryTraffic:
    device = watch.world.device
    size = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    source, other, target = (torch.ones(size // 4, device=device) for _ in range(3))
    tokens = model.seq_len * (CUDA_SEQUENCES if device.type == "cuda" else 1)
    return MemoryTraffic(
        copy_gb_per_s=2 * size / watch.seconds(lambda: target.copy_(source)) / 1e9,
        triad_gb_per_s=3 * size / watch.seconds(lambda: torch.add(source, other, alpha=0.5, out=target)) / 1e9,
        tokens=tokens,
        hidden=model.hidden,
        elementwise_seconds=_elementwise_seconds(watch, tokens, model.hidden, DTYPES[precision]),
    )


def _elementwise_seconds(watch: Stopwatch, tokens: int, hidden: int, dtype: torch.dtype) -> float:
    """What a layer does between its GEMMs: two norms, two residual additions, GeLU of four times the width."""
    device = watch.world.device
    stream = torch.randn(tokens, hidden, device=device, dtype=dtype, requires_grad=True)
    inner = torch.randn(tokens, 4 * hidden, device=device, dtype=dtype, requires_grad=True)
    scale = torch.ones(hidden, device=device, dtype=dtype, requires_grad=True)
    upstream = [torch.randn_like(stream), torch.randn_like(inner)]

    def both_passes() -> object:
        middle = stream + F.layer_norm(stream, (hidden,), scale, scale)
        end = middle + F.layer_norm(middle, (hidden,), scale, scale)
        return torch.autograd.grad([end, F.gelu(inner)], (stream, inner, scale), upstream)

    return watch.seconds(both_passes)


def context_gib(device: torch.device) -> float:
    """GPU memory in use outside the allocator, if no other process uses the card."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free - torch.cuda.memory_reserved(device)) / GIB


def measure_launches(watch: Stopwatch) -> LaunchOverhead:
    """The time of a GEMM and of a layer that are too small to take longer than their launches."""
    device, side = watch.world.device, SMALL_SIDE
    left, right = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    result = torch.empty(side, side, device=device)
    layer = SmallLayer().to(device)
    inputs = torch.randn(1, 2, side, device=device)
    return LaunchOverhead(
        kernel_seconds=watch.seconds(lambda: torch.mm(left, right, out=result)),
        layer_seconds=watch.seconds(lambda: layer(inputs)),
    )


class SmallLayer(torch.nn.Module):
    """A transformer layer of one head, with its graph for the backward pass."""

    def __init__(self, hidden: int = SMALL_SIDE) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unsqueeze(1) for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))
