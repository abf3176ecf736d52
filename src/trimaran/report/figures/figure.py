"""Figure: a plot and the rows behind it."""

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito's palette: distinct for the colour-blind, on white and on black.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#8c8c8c",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY, "#5b4b8a")
MEASURED, PREDICTED = GREEN, BLUE


@dataclass(frozen=True)
class Figure:
    name: str  # of its file
    title: str
    caption: str
    plot: Any
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    wide: bool = False  # the full width of the page

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return text.getvalue()


def plot(traces: Sequence[Any], height: int = 380, **layout: Any) -> Any:
    """With a transparent background: the page's is light or dark."""
    for trace in traces:
        trace.update({name: _escape(trace[name]) for name in ("x", "y", "text") if name in trace})
    figure = go.Figure(list(traces))
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        font={"family": "system-ui, sans-serif", "size": 12},
        **layout,
    )
    figure.update_xaxes(automargin=True, zeroline=False, gridcolor="rgba(128,128,128,0.25)")
    figure.update_yaxes(automargin=True, zeroline=False, gridcolor="rgba(128,128,128,0.25)")
    return figure


def _escape(value: Any) -> Any:
    """Labels and names of trials as written, on several lines where they have them: Plotly would make tags of theirs
    bold, or links."""
    if isinstance(value, str):
        return html.escape(value, quote=False).replace("\n", "<br>")
    return [_escape(item) for item in value] if isinstance(value, list | tuple) else value
