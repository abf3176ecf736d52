"""What a probe measured: tables on the terminal, plots in one HTML file."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.text import Text

from trimaran.cli.show import console, print_table
from trimaran.cost.constants import constants_of
from trimaran.cost.gemm import gemm_seconds
from trimaran.probe.latency_bandwidth import fit_latency_bandwidth
from trimaran.probe.result import GemmTiming, ProbeResult
from trimaran.spec import Cluster
from trimaran.spec.files import write_text

BAR = 40  # characters of the fastest GEMM


def print_measured(measured: ProbeResult, cluster: Cluster) -> None:
    out, where = console(), f"{measured.nodes} nodes" if measured.nodes > 1 else "one node"
    how = f"ranks at once: {measured.ranks}, on {where}, {measured.precision}, in {measured.took_seconds:.0f} s"
    out.print(Text.assemble((measured.device_name, "bold"), f", {how}"))
    print_table("Device, as one rank has it", ("", "measured", "meaning"), _device_rows(measured, cluster), left=(0, 2))
    print_table(f"GEMMs of {measured.model}", *_gemms(measured, cluster))
    print_table("GEMM over its columns: tile and wave quantization", *_sweep(measured))
    if measured.collectives:
        print_table("Collectives", *_collectives(measured), left=(0, 1))
    if measured.left_out:
        out.print(f"Left out: {measured.left_out} of the measurements, for which there was no time.")


def _device_rows(measured: ProbeResult, cluster: Cluster) -> list[tuple[str, str, str]]:
    device, traffic, launches, k = cluster.device, measured.traffic, measured.launches, cluster.probed
    rows = [
        (f"{name} GEMM", f"{tflops:.4g} TFLOP/s", _share(tflops / device.peak_tflops[name]))
        for name, tflops in device.matmul_tflops.items()
    ]
    if measured.sustained_tflops is not None:
        rows += [("sustained", f"{measured.sustained_tflops:.4g} TFLOP/s", "large GEMMs back to back for five seconds")]
    rows += [
        ("memory copy", f"{traffic.copy_gb_per_s:.4g} GB/s", "read and written bytes of y = x"),
        ("memory triad", f"{traffic.triad_gb_per_s:.4g} GB/s", "of z = x + s y"),
        ("elementwise work", f"{k['memory_efficiency']:.0%}", "of the memory's bandwidth, as the cost model counts it"),
        ("attention", f"{k['flash_efficiency']:.0%}", "of the peak, forward and backward"),
        ("a kernel", f"{launches.kernel_seconds * 1e6:.3g} us", "a GEMM that takes no longer than its launch"),
        ("a layer", f"{launches.layer_seconds * 1e6:.3g} us", "the forward pass of such a layer"),
        ("context", f"{cluster.context_gib:.3g} GiB", "of a device's memory, outside the allocator"),
    ]
    return rows


def _share(of_peak: float) -> str:
    return "the best, taken as the peak" if of_peak == 1 else f"the best; {of_peak:.0%} of the data sheet's peak"


def _gemms(measured: ProbeResult, cluster: Cluster) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Beside each the cost model: how well the new constants describe this machine."""
    rows: list[tuple[str, ...]] = []
    for gemm in measured.products:
        if gemm.what not in ("sweep", "square"):
            modelled = _modelled_seconds(gemm, measured, cluster)
            times = (f"{gemm.seconds * 1e3:.3f}", f"{modelled * 1e3:.3f}", f"{modelled / gemm.seconds - 1:+.0%}")
            rows.append((gemm.what, str(gemm.rows), str(gemm.columns), str(gemm.inner), *times, f"{gemm.tflops:.4g}"))
    return ("GEMM", "rows", "columns", "inner", "ms", "cost model", "off", "TFLOP/s"), rows


def _sweep(measured: ProbeResult) -> tuple[Sequence[str], list[tuple[str, ...]], Sequence[int]]:
    gemms = _swept(measured)
    fastest = max(gemm.tflops for gemm in gemms)
    rows: list[tuple[str, ...]] = [
        (str(p.columns), f"{p.tflops:.4g}", "█" * round(BAR * p.tflops / fastest)) for p in gemms
    ]
    return ("columns", "TFLOP/s", f"of {gemms[0].rows} rows, inner dimension {gemms[0].inner}"), rows, (2,)


def _swept(measured: ProbeResult) -> list[GemmTiming]:
    return sorted((gemm for gemm in measured.products if gemm.what == "sweep"), key=lambda gemm: gemm.columns)


def _modelled_seconds(gemm: GemmTiming, measured: ProbeResult, cluster: Cluster) -> float:
    """By the cost model with the new constants."""
    peak = cluster.device.peak_tflops[measured.precision] * 1e12
    return float(gemm_seconds(cluster.device, peak, constants_of(cluster), gemm.rows, gemm.columns, gemm.inner))


def _collectives(measured: ProbeResult) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """A row for each group size: its smallest message, its best one, and latency and bandwidth fitted to all."""
    rows: list[tuple[str, ...]] = []
    order = sorted(measured.collectives, key=lambda c: (c.where, c.kind, c.ranks, c.bytes))
    for (where, kind, ranks), timings in groupby(order, key=lambda c: (c.where, c.kind, c.ranks)):
        group = list(timings)
        line = fit_latency_bandwidth([1] * len(group), [c.bytes for c in group], [c.seconds for c in group])
        small, best = group[0], max(group, key=lambda c: c.bus_gb_per_s)
        rows.append(
            (
                kind,
                where,
                f"{ranks} x {small.at_once}",
                f"{small.seconds * 1e6:.4g}",
                f"{best.bytes / 2**20:.3g}",
                f"{best.algorithm_gb_per_s:.4g}",
                f"{best.bus_gb_per_s:.4g}",
                f"{line.latency_seconds * 1e6:.4g} us + bytes / {line.bytes_per_s / 1e9:.4g} GB/s",
            )
        )
    header = ("collective", "where", "ranks x groups", "1 KiB, us", "best at MiB", "algorithm GB/s", "bus GB/s", "line")
    return header, rows


def save_plot(measured: ProbeResult, cluster: Cluster, path: Path) -> None:
    """GEMMs over their columns, collectives over the message size."""
    from plotly.subplots import make_subplots

    titles = ("GEMMs over their columns", "Bus bandwidth over the message size")
    figure: Any = make_subplots(rows=1, cols=2, subplot_titles=titles)
    gemms = _swept(measured)
    columns = [gemm.columns for gemm in gemms]
    modelled = [gemm.flops / _modelled_seconds(gemm, measured, cluster) / 1e12 for gemm in gemms]
    rates = [gemm.tflops for gemm in gemms]
    figure.add_scatter(x=columns, y=rates, mode="lines+markers", name="measured", row=1, col=1)
    figure.add_scatter(x=columns, y=modelled, mode="lines", name="cost model", row=1, col=1)
    for kind, where, ranks in dict.fromkeys((c.kind, c.where, c.ranks) for c in measured.collectives):
        timings = [c for c in measured.of_kind(kind, where) if c.ranks == ranks]
        sizes, rates = [c.bytes for c in timings], [c.bus_gb_per_s for c in timings]
        name = f"{kind}, {ranks} ranks {where}"
        figure.add_scatter(x=sizes, y=rates, mode="lines+markers", name=name, row=1, col=2)
    figure.update_xaxes(title_text="columns", row=1, col=1)
    figure.update_yaxes(title_text="TFLOP/s of a rank", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="bytes", type="log", row=1, col=2)
    figure.update_yaxes(title_text="GB/s", type="log", row=1, col=2)
    figure.update_layout(title=f"{measured.device_name}, ranks at once: {measured.ranks}, {measured.date}")
    write_text(path, figure.to_html(include_plotlyjs=True))
