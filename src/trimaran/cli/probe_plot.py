"""Plots of a probe in one HTML file: GEMMs over their columns, collectives over the message size."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.cost.constants import constants_of
from trimaran.cost.gemm import gemm_seconds
from trimaran.spec import Cluster

if TYPE_CHECKING:
    from trimaran.probe.result import ProbeResult


def save_plot(measured: "ProbeResult", cluster: Cluster, path: Path) -> None:
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=1, cols=2, subplot_titles=("GEMMs over their columns", "Bus bandwidth over the message size")
    )
    _gemms(figure, measured, cluster)
    _collectives(figure, measured)
    figure.update_xaxes(title_text="columns", row=1, col=1)
    figure.update_yaxes(title_text="TFLOP/s of a rank", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="bytes", type="log", row=1, col=2)
    figure.update_yaxes(title_text="GB/s", type="log", row=1, col=2)
    figure.update_layout(title=f"{measured.device_name}, ranks at once: {measured.ranks}, {measured.date}")
    figure.write_html(path, include_plotlyjs=True)


def _gemms(figure: Any, measured: "ProbeResult", cluster: Cluster) -> None:
    """Measured, and by the cost model with the new constants."""
    k, peak = constants_of(cluster), cluster.device.peak_tflops[measured.precision] * 1e12
    sweep = sorted((gemm for gemm in measured.products if gemm.what == "sweep"), key=lambda p: p.columns)
    columns = [gemm.columns for gemm in sweep]
    modelled = [
        p.flops / float(gemm_seconds(cluster.device, peak, k, p.rows, p.columns, p.inner)) / 1e12 for p in sweep
    ]
    figure.add_scatter(x=columns, y=[p.tflops for p in sweep], mode="lines+markers", name="measured", row=1, col=1)
    figure.add_scatter(x=columns, y=modelled, mode="lines", name="cost model", row=1, col=1)


def _collectives(figure: Any, measured: "ProbeResult") -> None:
    groups = dict.fromkeys((c.kind, c.where, c.ranks) for c in measured.collectives)
    for kind, where, ranks in groups:
        timings = [c for c in measured.of_kind(kind, where) if c.ranks == ranks]
        figure.add_scatter(
            x=[c.bytes for c in timings],
            y=[c.bus_gb_per_s for c in timings],
            mode="lines+markers",
            name=f"{kind}, {ranks} ranks {where}",
            row=1,
            col=2,
        )
