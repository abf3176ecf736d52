"""Memory of a device by stage and part, against what the device has."""

from typing import Any

import plotly.graph_objects as go

from trimaran.planner.explained import MEMORY, Explained
from trimaran.report.campaign import Campaign
from trimaran.report.figures.figure import GREEN, RED, SEVERAL, Figure, plot
from trimaran.report.figures.shown import shown
from trimaran.spec import Trial

GIB = 2**30


def memory(campaign: Campaign) -> Figure | None:
    layouts = shown(campaign)
    if not layouts:
        return None
    rows: list[tuple[Any, ...]] = [
        (label, stage, *(parts[name] / GIB for name in MEMORY), parts["total"] / GIB)
        for label, made, _ in layouts
        for stage, parts in made.memory_bytes().items()
    ]
    labels, stages = [row[0] for row in rows], [row[1] for row in rows]
    staged = any(made.job.layout.pp > 1 for _, made, _ in layouts)
    places = [labels, stages] if staged else labels
    traces = [
        go.Bar(
            name=meaning,
            x=places,
            y=[row[2 + i] for row in rows],
            marker={"color": SEVERAL[i], "line": {"width": 0}},
            hovertemplate="%{y:.2f} GiB " + meaning + "<extra></extra>",
        )
        for i, meaning in enumerate(MEMORY.values())
        if any(row[2 + i] > 0.005 * row[-1] for row in rows)
    ]
    measured = _measured(layouts)
    seen = [(place, gib) for place in zip(labels, stages, strict=True) if (gib := measured.get(place))]
    if seen:
        x = (
            [[label for (label, _), _ in seen], [stage for (_, stage), _ in seen]]
            if staged
            else [p[0] for p, _ in seen]
        )
        marker = {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": GREEN}, "color": GREEN}
        traces.append(go.Scatter(name="measured", x=x, y=[gib for _, gib in seen], mode="markers", marker=marker))
    limit = max(made.job.cluster.device.memory_gib for _, made, _ in layouts)
    axis = {"type": "multicategory" if staged else "category"}
    made = plot(traces, height=440, barmode="stack", yaxis={"title": "GiB of a device"}, xaxis=axis)
    made.add_hline(y=limit, line={"color": RED, "dash": "dash"}, annotation={"text": f"the device has {limit:g} GiB"})
    return Figure(
        name="memory",
        title="Memory by stage",
        caption="Predicted, for a device of the first, a middle and the last pipeline stage.",
        plot=made,
        header=("layout", "stage", *(f"{name}_gib" for name in MEMORY), "total_gib", "measured_gib"),
        rows=tuple((*row, measured.get((row[0], row[1]))) for row in rows),
        wide=True,
    )


def _measured(layouts: list[tuple[str, Explained, Trial | None]]) -> dict[tuple[str, str], float]:
    """Peaks by stage where each was told; else the one peak stands at the first stage, where people look."""
    found: dict[tuple[str, str], float] = {}
    for label, made, trial in layouts:
        if trial is None:
            continue
        stages, told = made.stages, trial.outcome.memory_by_stage_gib
        if len(told) == made.job.layout.pp:
            by_kind = {"first": told[0], "middle": max(told[1:-1], default=0.0), "last": told[-1]}
            found |= {(label, stage): by_kind[stage] for stage in stages}
        elif trial.outcome.memory_gib:
            found[label, "first"] = trial.outcome.memory_gib
    return found
