"""Constants of the cost model from a probe: with each, the model's own expression gives what was seen."""

import math
from statistics import median

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from trimaran.cost.columns import COMPUTE_BYTES
from trimaran.cost.constants import Constants, constants_of, priors_of
from trimaran.cost.gemm import gemm_seconds
from trimaran.cost.time import CUT_BYTES, WHOLE_BYTES, short_sequence
from trimaran.learn.fit import Array, rounded
from trimaran.probe.latency_bandwidth import LatencyBandwidth, fit_latency_bandwidth
from trimaran.probe.result import CollectiveTiming, ProbeResult
from trimaran.spec import Cluster

SHAPE_NAMES = ("gemm_efficiency", "gemm_half_tokens", "gemm_half_width", "wave_exponent", "misaligned_slowdown")
NOISE = 0.1  # of the logarithm of one GEMM's time: libraries choose other kernels for neighbouring shapes
LEAST_SPREAD = 0.03  # the same probe on another day
LIMITED = 0.95  # GEMMs without a pause at this share of the best are held back by the power limit


def probed_constants(measured: ProbeResult, cluster: Cluster) -> tuple[dict[str, float], dict[str, float]]:
    """Constants and how far each may be off. `cluster` has the measured device and links already."""
    shapes, scatter = _gemm_constants(measured, cluster)
    found = shapes | {
        "kernel_us": measured.launches.kernel_seconds * 1e6,
        "layer_us": measured.launches.layer_seconds * 1e6,
        "memory_efficiency": _memory_efficiency(measured, cluster),
        "flash_efficiency": _flash_efficiency(measured, cluster),
    }
    spreads = {"gemm_efficiency": scatter}
    best = measured.best_tflops(measured.precision) or 0.0
    if measured.sustained_tflops is not None and measured.sustained_tflops < LIMITED * best:
        found["sustained_efficiency"] = measured.sustained_tflops / cluster.device.peak_tflops[measured.precision]
    inside = tensor_parallel_line(measured.of_kind("all-reduce", "inside"))
    if inside:
        found["inside_share"] = inside.bytes_per_s / 1e9 / cluster.inside.gb_per_s
        found["collective_us"] = inside.latency_seconds * 1e6
        spreads["inside_share"] = spreads["collective_us"] = inside.scatter
    if measured.of_kind("all-reduce", "between"):
        found |= _between_shares(measured, cluster)
    spreads = {name: round(max(spread, LEAST_SPREAD), 4) for name, spread in spreads.items()}
    return {name: rounded(value) for name, value in found.items()}, spreads


def tensor_parallel_line(seen: list[CollectiveTiming]) -> LatencyBandwidth | None:
    """An all-reduce of n ranks as cost/time.py has it: (n - 1) x (2/n x bytes / rate + latency)."""
    if not seen:
        return None
    return fit_latency_bandwidth(
        [c.ranks - 1 for c in seen],
        [2 * (c.ranks - 1) / c.ranks * c.bytes for c in seen],
        [c.seconds for c in seen],
    )


def _gemm_constants(measured: ProbeResult, cluster: Cluster) -> tuple[dict[str, float], float]:
    """What shapes cost, fitted to all GEMMs in the model's precision, held by the priors; and the scatter left."""
    seen = [gemm for gemm in measured.products if gemm.precision == measured.precision]
    rows, columns, inner = (np.array([getattr(p, side) for p in seen], float) for side in ("rows", "columns", "inner"))
    seconds = np.array([gemm.seconds for gemm in seen])
    peak_flops = cluster.device.peak_tflops[measured.precision] * 1e12
    start = constants_of(cluster).replace(kernel_us=measured.launches.kernel_seconds * 1e6)
    priors = priors_of(cluster)
    spread = np.array([0.3 if name == "gemm_efficiency" else priors[name].spread for name in SHAPE_NAMES])

    def moved(x: Array) -> Constants:
        return start.replace(
            **{n: priors[n].value * math.exp(v) for n, v in zip(SHAPE_NAMES, x, strict=True)}  # x: logarithms
        )

    def errors(x: Array) -> Array:
        return np.asarray(np.log(gemm_seconds(cluster.device, peak_flops, moved(x), rows, columns, inner) / seconds))

    found = least_squares(
        lambda x: np.concatenate([errors(x) / NOISE, x / spread]), np.zeros(len(SHAPE_NAMES)), loss="soft_l1"
    )
    best = moved(found.x)
    return {name: getattr(best, name) for name in SHAPE_NAMES}, float(np.std(errors(found.x)))


def _memory_efficiency(measured: ProbeResult, cluster: Cluster) -> float:
    """Forward and backward of a layer's elementwise work: three times the bytes of its forward pass."""
    seen = measured.traffic
    width = COMPUTE_BYTES[measured.precision] / 2
    moved_bytes = 3 * seen.tokens * seen.hidden * (WHOLE_BYTES + CUT_BYTES) * width
    return moved_bytes / seen.elementwise_seconds / (cluster.device.memory_gb_per_s * 1e9)


def _flash_efficiency(measured: ProbeResult, cluster: Cluster) -> float:
    """Over a long sequence. The cost model counts 2.5 times the forward pass's FLOPs for the backward pass."""
    peak_flops = cluster.device.peak_tflops[measured.precision] * 1e12
    rates = [
        3.5 * seen.forward_flops / seen.both_seconds * short_sequence(cluster, seen.seq) for seen in measured.attention
    ]
    return float(median(rates)) / peak_flops


def _between_shares(measured: ProbeResult, cluster: Cluster) -> dict[str, float]:
    """What all devices of a node get together when each sends to its peer on another node: dp groups, and stages."""
    node_gb_per_s, local = cluster.between.gb_per_s, cluster.devices_per_node
    rails = [c for c in measured.of_kind("all-reduce", "between") if c.ranks == measured.nodes]
    sends = measured.of_kind("send", "between")
    return {
        "reduction_share": local * max(c.bus_gb_per_s for c in rails) / node_gb_per_s,
        "between_share": local * max(c.bus_gb_per_s for c in sends) / node_gb_per_s,
    }
