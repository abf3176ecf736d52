"""Measured and predicted seconds: of the layouts that do the same work, and of every trial against its prediction."""

import numpy as np
import plotly.graph_objects as go

from trimaran.cost.predict import COVERAGE
from trimaran.report.campaign import Campaign
from trimaran.report.figures.figure import GREY, MEASURED, PREDICTED, Figure, plot

SHOWN = 30
BAND = 0.10


def seconds(campaign: Campaign) -> Figure | None:
    rows = campaign.comparable[:SHOWN]
    if not rows:
        return None
    predicted = [(row.label, row.predicted) for row in rows if row.predicted is not None]
    measured = [row.seconds for row in rows]
    outcomes = [row.trial.outcome for row in rows]
    traces = [
        go.Scatter(
            name=f"predicted, {COVERAGE:.0%} interval",
            y=[label for label, _ in predicted],
            x=[p.seconds for _, p in predicted],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [p.high - p.seconds for _, p in predicted],
                "arrayminus": [p.seconds - p.low for _, p in predicted],
                "thickness": 6,
                "width": 0,
                "color": "rgba(0,114,178,0.35)",
            },
            mode="markers",
            marker={"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": PREDICTED}, "color": PREDICTED},
        )
    ]
    if any(measured):
        traces.append(
            go.Scatter(
                name="measured (median, quartiles)",
                y=[row.label for row in rows],
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
            )
        )
    return Figure(
        name="seconds",
        title="Seconds per iteration",
        caption="Layouts of the same model and batch, the fastest at the top."
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
                *((row.predicted.seconds, row.predicted.low, row.predicted.high) if row.predicted else (None,) * 3),
            )
            for row in rows
        ),
        wide=True,
    )


def accuracy(campaign: Campaign) -> Figure | None:
    rows = [(row, row.predicted, row.seconds, row.error) for row in campaign.rows]
    known = [(row, p, s, error) for row, p, s, error in rows if p is not None and s is not None and error is not None]
    if not known:
        return None
    measured = np.array([s for _, _, s, _ in known])
    predicted = np.array([p.seconds for _, p, _, _ in known])
    errors = np.array([error for *_, error in known])
    inside = [p.low <= s <= p.high for _, p, s, _ in known]
    ends = np.array([min(measured.min(), predicted.min()) / 1.2, max(measured.max(), predicted.max()) * 1.2])
    ticks = "D2" if ends[1] > 5 * ends[0] else None  # 1, 2, 5, 10: too few in a narrow range
    lines = [
        go.Scatter(
            x=ends,
            y=ends * (1 + off),
            mode="lines",
            line={"color": GREY, "width": 1, "dash": dash},
            name=name,
            hoverinfo="skip",
            showlegend=off >= 0,
        )
        for off, dash, name in ((0.0, "solid", "equal"), (BAND, "dot", "±10 %"), (-BAND, "dot", ""))
    ]
    points = go.Scatter(
        x=measured,
        y=predicted,
        mode="markers",
        name="trials",
        text=[f"{row.label}\n{error:+.1%}" for row, _, _, error in known],
        hovertemplate="%{text}<br>measured %{x:.4g} s, predicted %{y:.4g} s<extra></extra>",
        marker={"size": 8, "color": PREDICTED, "opacity": 0.8},
    )
    return Figure(
        name="accuracy",
        title="Predicted against measured",
        caption=f"{len(known)} trials: mean error {np.abs(errors).mean():.1%}, median {np.median(np.abs(errors)):.1%};"
        f" {np.mean(inside):.0%} inside the {COVERAGE:.0%} interval.",
        plot=plot(
            [*lines, points],
            xaxis={"title": "measured, s", "type": "log", "dtick": ticks},
            yaxis={"title": "predicted, s", "type": "log", "dtick": ticks},
        ),
        header=("layout", "measured_s", "predicted_s", "low_s", "high_s", "error"),
        rows=tuple((row.label, s, p.seconds, p.low, p.high, error) for row, p, s, error in known),
    )
