"""Predicted against measured: every row that has both."""

import numpy as np
import plotly.graph_objects as go

from trimaran.cost.predict import COVERAGE
from trimaran.report.campaign import Campaign
from trimaran.report.figures.figure import GREY, PREDICTED, Figure, plot

BAND = 0.10


def accuracy(campaign: Campaign) -> Figure | None:
    rows = [(row, row.expected, row.seconds, row.error) for row in campaign.rows]
    known = [(row, e, s, error) for row, e, s, error in rows if e is not None and s is not None and error is not None]
    if not known:
        return None
    measured = np.array([s for _, _, s, _ in known])
    predicted = np.array([e.seconds for _, e, _, _ in known])
    errors = np.array([error for *_, error in known])
    inside = [e.low <= s <= e.high for _, e, s, _ in known]
    ends = np.array([min(measured.min(), predicted.min()) / 1.2, max(measured.max(), predicted.max()) * 1.2])
    diagonal = {"color": GREY, "width": 1}
    lines = [
        go.Scatter(
            x=ends,
            y=ends * (1 + off),
            mode="lines",
            line=diagonal | style,
            name=name,
            hoverinfo="skip",
            showlegend=off >= 0,
        )
        for off, style, name in ((0.0, {}, "equal"), (BAND, {"dash": "dot"}, "±10 %"), (-BAND, {"dash": "dot"}, ""))
    ]
    points = go.Scatter(
        x=measured,
        y=predicted,
        mode="markers",
        name="trials",
        text=[f"{row.label}<br>{error:+.1%}" for row, _, _, error in known],
        hovertemplate="%{text}<br>measured %{x:.4g} s, predicted %{y:.4g} s<extra></extra>",
        marker={"size": 8, "color": PREDICTED, "opacity": 0.8},
    )
    return Figure(
        name="accuracy",
        title="Predicted against measured",
        caption=f"{len(known)} trials: off by {np.abs(errors).mean():.1%} in the mean, {np.median(np.abs(errors)):.1%}"
        f" in the median; {np.mean(inside):.0%} inside the {COVERAGE:.0%} interval.",
        plot=plot(
            [*lines, points],
            xaxis={"title": "measured, s", "type": "log", "dtick": "D2"},
            yaxis={"title": "predicted, s", "type": "log", "dtick": "D2"},
        ),
        header=("layout", "measured_s", "predicted_s", "low_s", "high_s", "error"),
        rows=tuple((row.label, s, e.seconds, e.low, e.high, error) for row, e, s, error in known),
    )
