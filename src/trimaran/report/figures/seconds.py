"""Seconds per iteration, measured and predicted with its interval, of layouts that do the same work."""

import plotly.graph_objects as go

from trimaran.cost.predict import COVERAGE
from trimaran.report.campaign import Campaign
from trimaran.report.figures.figure import MEASURED, PREDICTED, Figure, plot

SHOWN = 30


def seconds(campaign: Campaign) -> Figure | None:
    rows = campaign.comparable[:SHOWN]
    if not rows:
        return None
    expected = [row for row in rows if row.expected is not None]
    labels = [row.label for row in rows]
    measured = [row.seconds for row in rows]
    outcomes = [row.trial.outcome for row in rows]
    traces = [
        go.Scatter(
            name=f"predicted, {COVERAGE:.0%} interval",
            y=[row.label for row in expected],
            x=[row.expected.seconds for row in expected if row.expected],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [row.expected.high - row.expected.seconds for row in expected if row.expected],
                "arrayminus": [row.expected.seconds - row.expected.low for row in expected if row.expected],
                "thickness": 6,
                "width": 0,
                "color": "rgba(0,114,178,0.35)",
            },
            mode="markers",
            marker={"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": PREDICTED}, "color": PREDICTED},
        ),
        go.Scatter(
            name="measured (median, quartiles)",
            y=labels,
            x=measured,
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(o.seconds_high or o.seconds or 0) - (o.seconds or 0) for o in outcomes],
                "arrayminus": [(o.seconds or 0) - (o.seconds_low or o.seconds or 0) for o in outcomes],
                "color": MEASURED,
            },
            mode="markers",
            marker={"size": 9, "color": MEASURED},
        ),
    ]
    if not any(measured):
        traces.pop()
    return Figure(
        name="seconds",
        title="Seconds per iteration",
        caption="Layouts that do the same work, the fastest at the top."
        + (f" The first {SHOWN} of {len(campaign.comparable)}." if len(campaign.comparable) > SHOWN else ""),
        plot=plot(
            traces,
            height=140 + 24 * len(rows),
            xaxis={"title": "seconds per iteration"},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
        header=("layout", "measured_s", "first_quartile_s", "third_quartile_s", "predicted_s", "low_s", "high_s"),
        rows=tuple(
            (
                row.label,
                row.seconds,
                row.trial.outcome.seconds_low,
                row.trial.outcome.seconds_high,
                *((row.expected.seconds, row.expected.low, row.expected.high) if row.expected else (None,) * 3),
            )
            for row in rows
        ),
        wide=True,
    )
