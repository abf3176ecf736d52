"""Memory by stage and the time of a step, by what uses them, of the layouts worth comparing."""

from typing import Any

import plotly.graph_objects as go

from trimaran.learn.trials import possible_job
from trimaran.planner.explain import MEMORY_LABELS, PART_LABELS, Explanation, explain
from trimaran.report.campaign import Campaign, short_setup
from trimaran.report.figures.figure import GREEN, PALETTE, RED, Figure, plot
from trimaran.spec import Trial

GIB = 2**30
MOST_LAYOUTS = 6
PICK = "the plan's pick"
Compared = tuple[str, Explanation, Trial | None]  # label, predicted breakdown, the trial unless nobody ran it


def memory(campaign: Campaign) -> Figure | None:
    layouts = compared_layouts(campaign)
    if not layouts:
        return None
    rows: list[tuple[Any, ...]] = [
        (label, stage, *(parts[name] / GIB for name in MEMORY_LABELS), parts["total"] / GIB)
        for label, explanation, _ in layouts
        for stage, parts in explanation.memory_bytes().items()
    ]
    labels, stages = [row[0] for row in rows], [row[1] for row in rows]
    staged = any(explanation.job.layout.pp > 1 for _, explanation, _ in layouts)
    traces = [
        go.Bar(
            name=meaning,
            x=[labels, stages] if staged else labels,
            y=[row[2 + i] for row in rows],
            marker={"color": PALETTE[i], "line": {"width": 0}},
            hovertemplate="%{y:.2f} GiB " + meaning + "<extra></extra>",
        )
        for i, meaning in enumerate(MEMORY_LABELS.values())
        if any(row[2 + i] > 0.005 * row[-1] for row in rows)
    ]
    measured = _measured_gib(layouts)
    known = [
        (label, stage, gib)
        for label, stage in zip(labels, stages, strict=True)
        if (gib := measured.get((label, stage)))
    ]
    if known:
        x = [label for label, _, _ in known]
        marker = {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": GREEN}, "color": GREEN}
        traces.append(
            go.Scatter(
                name="measured",
                x=[x, [stage for _, stage, _ in known]] if staged else x,
                y=[gib for _, _, gib in known],
                mode="markers",
                marker=marker,
            )
        )
    limit = max(explanation.job.cluster.device.memory_gib for _, explanation, _ in layouts)
    axis = {"type": "multicategory" if staged else "category"}
    drawn = plot(traces, height=440, barmode="stack", yaxis={"title": "GiB per device"}, xaxis=axis)
    drawn.add_hline(y=limit, line={"color": RED, "dash": "dash"}, annotation={"text": f"the device has {limit:g} GiB"})
    return Figure(
        name="memory",
        title="Memory by stage",
        caption="Predicted, for a device of the first, a middle and the last pipeline stage.",
        plot=drawn,
        header=("layout", "stage", *(f"{name}_gib" for name in MEMORY_LABELS), "total_gib", "measured_gib"),
        rows=tuple((*row, measured.get((row[0], row[1]))) for row in rows),
        wide=True,
    )


def parts(campaign: Campaign) -> Figure | None:
    layouts = [(label, explanation.time_seconds()) for label, explanation, _ in compared_layouts(campaign)]
    if not layouts:
        return None
    traces = [
        go.Bar(
            name=meaning,
            y=[label for label, _ in layouts],
            x=[seconds[name] for _, seconds in layouts],
            orientation="h",
            marker={"color": PALETTE[i]},
            hovertemplate="%{x:.3g} s " + meaning + "<extra></extra>",
        )
        for i, (name, meaning) in enumerate(PART_LABELS.items())
        if any(seconds[name] > 0.002 * sum(seconds.values()) for _, seconds in layouts)
    ]
    return Figure(
        name="parts",
        title="Where the time goes",
        caption="Predicted seconds of a step on the slowest stage.",
        plot=plot(
            traces,
            height=180 + 40 * len(layouts),
            barmode="stack",
            xaxis={"title": "seconds"},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
        header=("layout", *(f"{name}_s" for name in PART_LABELS)),
        rows=tuple((label, *(seconds[name] for name in PART_LABELS)) for label, seconds in layouts),
        wide=True,
    )


def compared_layouts(campaign: Campaign) -> list[Compared]:
    """The fastest trial of each of the fastest layouts, and the planner's pick where it was not tried."""
    compared: list[Compared] = []
    seen = set()
    for row in campaign.comparable:
        job = possible_job(row.trial)
        if job is None or job.layout in seen or len(compared) == MOST_LAYOUTS - 1:
            continue
        seen.add(job.layout)
        short = row.label if row.trial.source.kind == "run" else short_setup(row.trial)
        taken = any(label == short for label, _, _ in compared)
        compared.append((row.label if taken else short, explain(job), row.trial))
    plan = campaign.plan
    if plan is not None and plan.best.layout not in seen:
        compared.append((PICK, explain(plan.best.job), None))
    return compared


def _measured_gib(layouts: list[Compared]) -> dict[tuple[str, str], float]:
    """Peaks by stage where the trial has them; a single peak is taken to be the first stage's, where people measure."""
    measured: dict[tuple[str, str], float] = {}
    for label, explanation, trial in layouts:
        if trial is None:
            continue
        peaks = trial.outcome.memory_by_stage_gib
        if len(peaks) == explanation.job.layout.pp:
            by_kind = {"first": peaks[0], "middle": max(peaks[1:-1], default=0.0), "last": peaks[-1]}
            measured |= {(label, stage): by_kind[stage] for stage in explanation.stages}
        elif trial.outcome.memory_gib:
            measured[label, "first"] = trial.outcome.memory_gib
    return measured
