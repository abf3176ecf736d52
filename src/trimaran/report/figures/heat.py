"""Heat maps of the plan: the fastest layout by tensor- and pipeline-parallel size, and by micro batch."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from trimaran.report.campaign import Campaign, Row
from trimaran.report.figures.figure import Figure, plot

SLOWEST = 2.0  # times the best: the end of the colour scale; values that are always slower get no line
MOST_VALUES = 14  # of an axis


def tensor_pipeline(campaign: Campaign) -> Figure | None:
    return _heat_map(campaign, "pp", "tp", "pipeline parallel", "tensor parallel", "Tensor and pipeline parallel")


def micro_batches(campaign: Campaign) -> Figure | None:
    return _heat_map(campaign, "mbs", "tp", "micro batch", "tensor parallel", "Micro batch and tensor parallel")


def _heat_map(campaign: Campaign, x: str, y: str, x_name: str, y_name: str, title: str) -> Figure | None:
    if campaign.plan is None:
        return None
    found = campaign.plan.ranking
    cells: dict[tuple[int, int], float] = {}
    for column, row, seconds in zip(getattr(found.rows, x), getattr(found.rows, y), found.seconds, strict=True):
        key = int(column), int(row)
        cells[key] = min(cells.get(key, np.inf), float(seconds))
    best = min(cells.values())
    measured = _measured(campaign.comparable, x, y)
    columns, lines = (_values(cells, axis, {key[axis] for key in measured}, SLOWEST * best) for axis in (0, 1))
    if len(columns) * len(lines) < 2:
        return None
    grid = [[cells.get((column, line)) for column in columns] for line in lines]
    text = [[_text(cells.get((c, line)), measured.get((c, line))) for c in columns] for line in lines]
    trace = go.Heatmap(
        x=[str(column) for column in columns],
        y=[str(line) for line in lines],
        z=grid,
        text=text,
        texttemplate="%{text}",
        textfont={"size": 11},
        zmin=best,
        zmax=SLOWEST * best,
        colorscale="Viridis_r",
        xgap=2,
        ygap=2,
        colorbar={"title": {"text": "s"}, "thickness": 12},
        hovertemplate=f"{x_name} %{{x}}, {y_name} %{{y}}: %{{z:.4g}} s<extra></extra>",
    )
    axes: dict[str, Any] = {
        "xaxis": {"title": x_name, "type": "category"},
        "yaxis": {"title": y_name, "type": "category"},
    }
    return Figure(
        name=f"heat-{x}-{y}",
        title=title,
        caption="Predicted seconds of the fastest layout that fits, over all other choices;"
        " measured seconds below it in brackets. Empty: nothing fits.",
        plot=plot([trace], height=110 + 46 * max(4, len(lines)), **axes),
        header=(x, y, "predicted_s", "measured_s"),
        rows=tuple((c, line, cells.get((c, line)), measured.get((c, line))) for c in columns for line in lines),
    )


def _values(cells: dict[tuple[int, int], float], axis: int, measured: set[int], slowest: float) -> list[int]:
    """The values of an axis that were measured or are fast enough; of too many, those of the fastest layouts."""
    fastest: dict[int, float] = {}
    for key, seconds in cells.items():
        fastest[key[axis]] = min(fastest.get(key[axis], np.inf), seconds)
    kept = [value for value in fastest if fastest[value] <= slowest or value in measured]
    return sorted(sorted(kept, key=lambda value: fastest[value])[:MOST_VALUES])


def _measured(rows: tuple[Row, ...], x: str, y: str) -> dict[tuple[int, int], float]:
    """Rows come fastest first."""
    found: dict[tuple[int, int], float] = {}
    for row in rows:
        key = getattr(row.trial.setup, x), getattr(row.trial.setup, y)
        if None not in key and row.seconds is not None:
            found.setdefault(key, row.seconds)
    return found


def _text(predicted: float | None, measured: float | None) -> str:
    text = "" if predicted is None else _short(predicted)
    return text + ("" if measured is None else f"\n({_short(measured)})")


def _short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"
