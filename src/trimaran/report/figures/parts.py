"""Where the seconds of a step go, layout beside layout."""

import plotly.graph_objects as go

from trimaran.planner.parts import MEANING
from trimaran.report.campaign import Campaign
from trimaran.report.figures.figure import SEVERAL, Figure, plot
from trimaran.report.figures.shown import shown


def parts(campaign: Campaign) -> Figure | None:
    layouts = [(label, made.time_seconds()) for label, made, _ in shown(campaign)]
    if not layouts:
        return None
    traces = [
        go.Bar(
            name=meaning,
            y=[label for label, _ in layouts],
            x=[seconds[name] for _, seconds in layouts],
            orientation="h",
            marker={"color": SEVERAL[i]},
            hovertemplate="%{x:.3g} s " + meaning + "<extra></extra>",
        )
        for i, (name, meaning) in enumerate(MEANING.items())
        if any(seconds[name] > 0.002 * sum(seconds.values()) for _, seconds in layouts)
    ]
    return Figure(
        name="parts",
        title="Where the time goes",
        caption="Seconds of a step along the slowest stage, predicted.",
        plot=plot(
            traces,
            height=180 + 40 * len(layouts),
            barmode="stack",
            xaxis={"title": "seconds"},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
        header=("layout", *(f"{name}_s" for name in MEANING)),
        rows=tuple((label, *(seconds[name] for name in MEANING)) for label, seconds in layouts),
        wide=True,
    )
