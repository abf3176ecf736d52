"""The arithmetic of a probe: bandwidths as nccl-tests define them, lines and constants that are found again."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.cli.probe_show import save_plot
from trimaran.cost.constants import constants_of
from trimaran.cost.gemm import gemm_seconds
from trimaran.learn.probed import probed_cluster
from trimaran.learn.probed_constants import probed_constants, tensor_parallel_line
from trimaran.probe.gemm_shapes import model_shapes, sweep_shapes
from trimaran.probe.latency_bandwidth import fit_latency_bandwidth
from trimaran.probe.result import (
    AttentionTiming,
    CollectiveTiming,
    GemmTiming,
    HostFacts,
    LaunchOverhead,
    MemoryTraffic,
    ProbeResult,
)
from trimaran.probe.timing import is_stable
from trimaran.probe.world import nodes_of
from trimaran.spec import Cluster, Mistake, presets

MIB = 2**20


def message(kind: str, ranks: int, size: int, seconds: float) -> CollectiveTiming:
    return CollectiveTiming.of(
        {"kind": kind, "where": "inside", "ranks": ranks, "at_once": 1, "bytes": size, "seconds": seconds}
    )


@pytest.mark.parametrize(
    ("kind", "ranks", "size", "microseconds", "algorithm", "bus"),
    [
        # By hand from nccl-tests' PERFORMANCE.md: busbw = algbw x 2(n-1)/n, (n-1)/n, (n-1)/n, 1.
        ("all-reduce", 8, 128_000_000, 1000.0, 128.0, 224.0),
        ("all-reduce", 2, 128_000_000, 1000.0, 128.0, 128.0),
        ("all-gather", 8, 128_000_000, 1000.0, 128.0, 112.0),
        ("reduce-scatter", 4, 64_000_000, 500.0, 128.0, 96.0),
        ("send", 2, 64_000_000, 500.0, 128.0, 128.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(
    kind: str, ranks: int, size: int, microseconds: float, algorithm: float, bus: float
) -> None:
    seen = message(kind, ranks, size, microseconds * 1e-6)
    assert seen.algorithm_gb_per_s == pytest.approx(algorithm)
    assert seen.bus_gb_per_s == pytest.approx(bus)


@given(
    latency=st.floats(1e-6, 1e-2),
    rate=st.floats(1e8, 1e12),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_line_finds_the_latency_and_bandwidth_that_were_planted(latency: float, rate: float, seed: int) -> None:
    """Messages from a tenth to ten times the size where both are equal, each time off by some 3 %."""
    sizes = latency * rate * np.logspace(-2, 2, 17)
    noise = np.exp(0.03 * np.random.default_rng(seed).standard_normal(len(sizes)))
    line = fit_latency_bandwidth([1.0] * len(sizes), sizes, (latency + sizes / rate) * noise)
    assert line.latency_seconds == pytest.approx(latency, rel=0.15)
    assert line.bytes_per_s == pytest.approx(rate, rel=0.15)
    assert line.scatter < 0.08


def test_groups_of_several_sizes_give_one_link() -> None:
    """(n - 1) x (2/n x bytes / rate + latency), planted with 10 GB/s and 30 us for a further rank."""
    seen = [
        message("all-reduce", n, size, (n - 1) * (2 / n * size / 10e9 + 30e-6))
        for n in (2, 4, 8)
        for size in (1024, 65536, MIB, 16 * MIB)
    ]
    line = tensor_parallel_line(seen)
    assert line is not None
    assert line.bytes_per_s == pytest.approx(10e9, rel=1e-3)
    assert line.latency_seconds == pytest.approx(30e-6, rel=1e-3)


def planted(cluster: Cluster, **changes: float) -> ProbeResult:
    """What a probe of an H200 would see if the cost model with these constants were the truth."""
    k, peak = constants_of(cluster).replace(**changes), cluster.device.peak_tflops["bf16"] * 1e12
    shapes = [*model_shapes(presets.model("gpt-1b3"), "bf16", False), *sweep_shapes(True, "bf16", False)]
    products = [
        GemmTiming(
            what=s.what,
            precision="bf16",
            rows=s.rows,
            columns=s.columns,
            inner=s.inner,
            seconds=float(gemm_seconds(cluster.device, peak, k, s.rows, s.columns, s.inner)),
        )
        for s in shapes
    ]
    flops = 2.0 * 16 * 2048**2 * 128
    both = 3.5 * flops * (1 + 1000 / 2048) / (peak * k.flash_efficiency)  # docs/cost-model.md
    return ProbeResult(
        command="trimaran probe",
        date="2026-01-01",
        took_seconds=60,
        model="gpt-1b3",
        ranks=1,
        nodes=1,
        device="cuda",
        device_name="NVIDIA H200",
        units=132,
        device_memory_gib=139.8,
        precision="bf16",
        host=HostFacts(cpu="", cores=1, numa_nodes=1, memory_gib=1, torch="2.11", network_gbit_per_s={}),
        products=tuple(products),
        attention=(
            AttentionTiming(batch=1, heads=16, seq=2048, head_dim=128, forward_seconds=both / 3.5, both_seconds=both),
        ),
        traffic=MemoryTraffic(
            copy_gb_per_s=4300,
            triad_gb_per_s=4200,
            tokens=2048,
            hidden=2048,
            elementwise_seconds=3 * 2048 * 2048 * 48 / (4800e9 * k.memory_efficiency),
        ),
        launches=LaunchOverhead(kernel_seconds=k.kernel_us * 1e-6, layer_seconds=k.layer_us * 1e-6),
        collectives=(),
        context_gib=1.2,
    )


def test_constants_that_were_planted_are_found() -> None:
    cluster = presets.cluster("hgx-h200").replace(probed={}, constants={}, spreads={})
    truth = {
        "gemm_efficiency": 0.7,
        "gemm_half_tokens": 120.0,
        "gemm_half_width": 160.0,
        "flash_efficiency": 0.6,
        "memory_efficiency": 0.85,
        "kernel_us": 3.0,
        "layer_us": 450.0,
    }
    measured = planted(cluster, **truth)
    found, _ = probed_constants(measured, cluster)
    for name, value in truth.items():
        # Large GEMMs depend little on small dimensions, so the priors count there; the times must be right.
        assert found[name] == pytest.approx(value, rel=0.25 if "half" in name else 0.05), name
    k, peak = constants_of(cluster).replace(**found), cluster.device.peak_tflops["bf16"] * 1e12
    for p in measured.products:
        assert gemm_seconds(cluster.device, peak, k, p.rows, p.columns, p.inner) == pytest.approx(p.seconds, rel=0.03)
    assert "inside_share" not in found  # one rank has nobody to talk to
    alone = probed_cluster(measured)
    assert (alone.context_gib, alone.communicator_gib) == (1.2, cluster.communicator_gib)
    assert "communicator_gib" in alone.sources


def test_a_gpu_that_slows_down_without_a_pause_has_a_power_limit() -> None:
    """600 TFLOP/s after five seconds is 0.607 of an H200's peak; within 5 % of the best GEMM there is no limit."""
    cluster = presets.cluster("hgx-h200")
    measured = planted(cluster, gemm_efficiency=0.8)
    best = measured.best_tflops("bf16")
    assert best is not None
    assert probed_constants(measured.replace(sustained_tflops=600.0), cluster)[0]["sustained_efficiency"] == 0.6067
    for fast in (0.97 * best, None):
        assert "sustained_efficiency" not in probed_constants(measured.replace(sustained_tflops=fast), cluster)[0]


def test_the_network_of_two_nodes_is_what_all_their_devices_get_together() -> None:
    """All ranks: 20 GB/s. One rank of each node, two groups at once: 8 each. Sends to the other node: 5 each."""

    def between(kind: str, ranks: int, at_once: int, bus: float) -> dict[str, object]:
        factor = {"all-reduce": 2 * (ranks - 1) / ranks, "send": 1.0}[kind]
        seconds = 16 * MIB * factor / (bus * 1e9)
        seen = {"kind": kind, "where": "between", "ranks": ranks, "at_once": at_once}
        return {**seen, "bytes": 16 * MIB, "seconds": seconds}

    seen = [between("all-reduce", 4, 1, 20), between("all-reduce", 2, 2, 8), between("send", 2, 2, 5)]
    cluster = probed_cluster(planted(presets.cluster("hgx-h200")).replace(ranks=4, nodes=2, collectives=seen))
    assert (cluster.nodes, cluster.devices_per_node, cluster.devices) == (2, 2, 4)
    assert cluster.between.gb_per_s == pytest.approx(20, rel=1e-3)
    assert (cluster.context_gib, cluster.communicator_gib) == (1.2, None)  # four ranks that talked: the first has all
    assert cluster.probed["reduction_share"] == pytest.approx(2 * 8 / 20, rel=1e-3)
    assert cluster.probed["between_share"] == pytest.approx(2 * 5 / 20, rel=1e-3)


def test_a_known_gpu_keeps_the_peak_of_its_data_sheet() -> None:
    measured = planted(presets.cluster("hgx-h200"))
    device = probed_cluster(measured).device
    assert (device.name, device.peak_tflops["bf16"], device.memory_gb_per_s) == ("h200", 989, 4800)
    assert device.matmul_tflops["bf16"] == pytest.approx(max(p.tflops for p in measured.products), rel=1e-3)


def test_an_unknown_gpu_gets_what_was_seen() -> None:
    measured = planted(presets.cluster("hgx-h200")).replace(device_name="ACME Turbo 9", device_memory_gib=24.0)
    cluster = probed_cluster(measured)
    device = cluster.device
    assert (device.name, device.memory_gib, device.memory_gb_per_s) == ("acme-turbo-9", 24.0, 4300)
    assert device.peak_tflops == device.matmul_tflops
    assert "Assumed" in cluster.inside.source


def test_plots_show_what_was_seen_beside_the_cost_model(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    measured = planted(presets.cluster("hgx-h200"))
    save_plot(measured, probed_cluster(measured), tmp_path / "probe.html")
    page = (tmp_path / "probe.html").read_text()
    assert "NVIDIA H200, ranks at once: 1" in page
    assert '"name":"measured"' in page
    assert '"name":"cost model"' in page


def test_a_measured_probe_is_lossless_in_json() -> None:
    measured = planted(presets.cluster("hgx-h200"))
    assert ProbeResult.from_json(measured.to_json()) == measured


def test_rounds_end_when_three_agree() -> None:
    assert not is_stable([1.0, 1.0])
    assert not is_stable([1.0, 1.0, 1.2])
    assert is_stable([1.5, 1.0, 1.02, 1.04])


def test_nodes_are_told_apart_by_their_host_names() -> None:
    assert nodes_of(["a", "a", "b", "b"]) == ((0, 1), (2, 3))
    assert nodes_of(["a", "b", "a", "b"]) == ((0, 2), (1, 3))
    with pytest.raises(Mistake, match="different numbers of ranks"):
        nodes_of(["a", "a", "b"])


def test_every_gemm_of_a_layer_is_measured_on_every_number_of_tensor_ranks() -> None:
    """The FLOPs of a layer's GEMMs on tp ranks add up to those on one: 12 hidden² weights, twice a token."""
    model = presets.model("gpt-1b3")
    shapes = model_shapes(model, "bf16", False)
    for tp in (1, 2, 4, 8):
        names = {f"{name} tp {tp}" for name in ("qkv", "out", "up", "down")}
        layer = [s for s in shapes if s.what in names and s.rows == model.seq_len]
        assert math.isclose(sum(s.flops for s in layer) * tp, 2 * model.seq_len * 12 * model.hidden**2)
