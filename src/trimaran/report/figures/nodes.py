"""Throughput against nodes: measured, predicted for the fastest layout with other dp, and linear scaling."""

from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from trimaran.cost.columns import columns_of
from trimaran.cost.predict import predict
from trimaran.report.campaign import Campaign, Row
from trimaran.report.figures.figure import GREY, MEASURED, PREDICTED, Figure, plot
from trimaran.spec import Job

TICK_RATIO = 1.4  # between labelled ticks of a logarithmic axis


def nodes(campaign: Campaign) -> Figure | None:
    job = campaign.job
    if job is None:
        return None
    replicas, rate = _throughput(job)
    if len(replicas) < 2:
        return None
    per_node = job.cluster.devices_per_node
    counts = replicas * job.layout.tp * job.layout.pp / per_node
    measured = _measured(campaign.rows, job)
    ideal = rate[0] / counts[0] * counts
    traces = [
        go.Scatter(name="linear scaling", x=counts, y=ideal, mode="lines", line={"color": GREY, "dash": "dot"}),
        go.Scatter(name="predicted", x=counts, y=rate, mode="lines+markers", line={"color": PREDICTED}),
    ]
    if measured:
        traces.append(
            go.Scatter(
                name="measured",
                x=[count for count, _, _ in measured],
                y=[tokens for _, tokens, _ in measured],
                text=[label for _, _, label in measured],
                hovertemplate="%{text}: %{y:,.0f} tokens/s on %{x} nodes<extra></extra>",
                mode="markers",
                marker={"size": 9, "color": MEASURED},
            )
        )
    return Figure(
        name="nodes",
        title="Throughput against nodes",
        caption=f"Tokens per second of the whole job. The prediction keeps tp {job.layout.tp}, pp {job.layout.pp}, mbs"
        f" {job.layout.micro_batch} and the global batch of {job.batch.size}, and changes dp.",
        plot=plot(
            traces,
            xaxis={"title": f"nodes of {per_node}", "type": "log", "tickvals": _ticks(counts), "tickformat": "~g"},
            yaxis={"title": "tokens per second", "type": "log", "dtick": "D2", "tickformat": "~s"},
        ),
        header=("kind", "nodes", "tokens_per_second", "layout"),
        rows=(
            *(
                ("predicted", float(count), float(tokens), f"dp {dp}")
                for count, tokens, dp in zip(counts, rate, replicas, strict=True)
            ),
            *(("measured", *each) for each in measured),
        ),
    )


def _ticks(counts: Any) -> list[float]:
    """Those with room for a label."""
    kept: list[float] = []
    for count in counts:
        if not kept or count >= TICK_RATIO * kept[-1]:
            kept.append(float(count))
    return kept


def _throughput(job: Job) -> tuple[Any, Any]:
    """Values of dp that divide the batch, a quarter to eight times the job's; and their predicted tokens per second."""
    micro_batches = job.batch.size // job.layout.micro_batch
    tried = np.array([dp for dp in range(1, micro_batches + 1) if micro_batches % dp == 0])
    tried = tried[(tried * 4 >= job.layout.dp) & (tried <= 8 * job.layout.dp)]
    columns = replace(columns_of([job]), dp=tried.astype(float))
    seconds = np.broadcast_to(predict(columns, job.cluster, job.trainer).seconds, tried.shape)
    return tried, job.batch.size * job.model.seq_len / seconds


def _measured(rows: tuple[Row, ...], job: Job) -> list[tuple[float, float, str]]:
    """Nodes, tokens per second and label of the trials of the same model."""
    found = []
    for row in rows:
        setup = row.trial.setup
        same = (setup.layers, setup.hidden) == (job.model.layers, job.model.hidden)
        if same and row.seconds and setup.gbs and setup.seq_len and setup.nodes:
            found.append((float(setup.nodes), setup.gbs * setup.seq_len / row.seconds, row.label))
    return found
