"""The pipeline of the fastest layout: when each stage runs which micro batch, and when it idles."""

import plotly.graph_objects as go

from trimaran.planner.explain import explain
from trimaran.planner.timeline import idle_share
from trimaran.report.campaign import Campaign
from trimaran.report.figures.figure import BLUE, GREEN, ORANGE, Figure, plot

COLOURS = {"forward": BLUE, "backward": GREEN, "weights": ORANGE}
MEANING = {"forward": "forward", "backward": "backward", "weights": "weight gradients"}
NUMBERED = 160  # most spans for which each shows its micro batch
MOST = 24  # micro batches drawn, and stages drawn tall


def timeline(campaign: Campaign) -> Figure | None:
    job = campaign.job
    if job is None or job.layout.pp == 1:
        return None
    explanation = explain(job)
    spans, drawn = explanation.pipeline(min(job.layout.pp + 4, MOST))
    traces = []
    for kind, colour in COLOURS.items():
        some = [span for span in spans if span.work.pass_ == kind]
        if not some:
            continue
        traces.append(
            go.Bar(
                name=MEANING[kind],
                y=[f"stage {span.stage}" for span in some],
                x=[span.end - span.start for span in some],
                base=[span.start for span in some],
                orientation="h",
                marker={"color": colour, "line": {"width": 0.5, "color": "rgba(255,255,255,0.7)"}},
                text=[str(span.work.micro_batch) for span in some] if len(spans) <= NUMBERED else None,
                textposition="inside",
                insidetextanchor="middle",
                textfont={"color": "white"},
                customdata=[(span.work.micro_batch, span.start, span.end) for span in some],
                hovertemplate="micro batch %{customdata[0]}, "
                + MEANING[kind]
                + ": %{customdata[1]:.3g} to %{customdata[2]:.3g} s<extra></extra>",
            )
        )
    stages = [f"stage {stage}" for stage in range(job.layout.pp)]
    return Figure(
        name="timeline",
        title="The pipeline of the fastest layout",
        caption=f"{job.layout.schedule}, {drawn} of {job.micro_batches} micro batches. Empty: the stage idles,"
        f" {idle_share(spans, job.layout.pp):.0%} of the drawn time and {explanation.bubble:.1%} of the whole step.",
        plot=plot(
            traces,
            height=140 + (26 if job.layout.pp <= MOST else 16) * job.layout.pp,
            barmode="overlay",
            bargap=0.15,
            xaxis={"title": "seconds"},
            yaxis={"type": "category", "categoryorder": "array", "categoryarray": stages, "autorange": "reversed"},
        ),
        header=("stage", "pass", "micro_batch", "chunk", "start_s", "end_s"),
        rows=tuple((s.stage, s.work.pass_, s.work.micro_batch, s.work.chunk, s.start, s.end) for s in spans),
        wide=True,
    )
