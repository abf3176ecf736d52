"""Plots of a probe in one HTML file: products over their columns, messages over their size."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimaran.probe.measured import Measured
    from trimaran.spec import Cluster


def save_plot(measured: "Measured", cluster: "Cluster", path: Path) -> None:
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=1, cols=2, subplot_titles=("Matrix products over their columns", "Bus bandwidth over the message")
    )
    _products(figure, measured, cluster)
    _messages(figure, measured)
    figure.update_xaxes(title_text="columns", row=1, col=1)
    figure.update_yaxes(title_text="TFLOP/s of a rank", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="bytes", type="log", row=1, col=2)
    figure.update_yaxes(title_text="GB/s", type="log", row=1, col=2)
    figure.update_layout(title=f"{measured.device_name}, ranks at once: {measured.ranks}, {measured.date}")
    figure.write_html(path, include_plotlyjs=True)


def _products(figure: Any, measured: "Measured", cluster: "Cluster") -> None:
    """What was seen, and what the cost model makes of it with the new constants."""
    from trimaran.cost.constants import constants_of
    from trimaran.cost.gemm import gemm_seconds

    k, peak = constants_of(cluster), cluster.device.peak_tflops[measured.precision] * 1e12
    sweep = sorted((product for product in measured.products if product.what == "sweep"), key=lambda p: p.columns)
    columns = [product.columns for product in sweep]
    modelled = [
        p.flops / float(gemm_seconds(cluster.device, peak, k, p.rows, p.columns, p.inner)) / 1e12 for p in sweep
    ]
    figure.add_scatter(x=columns, y=[p.tflops for p in sweep], mode="lines+markers", name="measured", row=1, col=1)
    figure.add_scatter(x=columns, y=modelled, mode="lines", name="cost model", row=1, col=1)


def _messages(figure: Any, measured: "Measured") -> None:
    groups = dict.fromkeys((c.kind, c.where, c.ranks) for c in measured.collectives)
    for kind, where, ranks in groups:
        seen = [c for c in measured.of_kind(kind, where) if c.ranks == ranks]
        figure.add_scatter(
            x=[c.bytes for c in seen],
            y=[c.bus_gb_per_s for c in seen],
            mode="lines+markers",
            name=f"{kind}, {ranks} ranks {where}",
            row=1,
            col=2,
        )
