"""The page: campaigns and their figures as one self-contained HTML file, which works offline."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from trimaran import __version__
from trimaran.cost.parameters import total_parameters
from trimaran.ledger.audit.finding import LEVELS
from trimaran.ledger.results import NOTES_HEADER, notes_row
from trimaran.planner.tables import short_layout
from trimaran.report import answer
from trimaran.report.campaign import Campaign, Row
from trimaran.report.figures import Figure

FILTERED = ("Nodes", "Size", "TP", "PP", "MBS", "GBS", "status")  # columns with a filter above the table
MOST_CHOICES = 14


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # a number to sort by, unrounded


def render_page(title: str, campaigns: list[tuple[Campaign, list[Figure]]], origin: str) -> str:
    """`origin`: when and from what it was made, for the reader."""
    folder = files("trimaran.report") / "template"
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        (folder / "page.html").read_text("utf-8")
    )
    return template.render(
        title=title,
        origin=origin,
        version=__version__,
        style=Markup((folder / "page.css").read_text("utf-8")),
        script=Markup((folder / "page.js").read_text("utf-8")),
        plotly=Markup(get_plotlyjs()),
        campaigns=[_view(number, campaign, figures) for number, (campaign, figures) in enumerate(campaigns, 1)],
        levels=LEVELS,
    )


def _view(number: int, campaign: Campaign, figures: list[Figure]) -> dict[str, Any]:
    winner = campaign.winner
    header = ("", *NOTES_HEADER[:-1], "predicted", "error", "mem. pred.", "status", NOTES_HEADER[-1])
    rows = [(row, _cells(row, row.trial.id in campaign.best)) for row in campaign.rows]
    return {
        "id": f"campaign-{number}",
        "campaign": campaign,
        "winner": winner,
        "headline": answer.headline(winner) if winner else "",
        "facts": answer.facts(winner) if winner else [],
        "why": answer.reasons(campaign),
        "sure": answer.confidence(campaign),
        "next": answer.suggestion(campaign),
        "header": header,
        "rows": [
            {"id": row.trial.id, "best": row.trial.id in campaign.best, "cells": cells, "failed": row.failed}
            for row, cells in rows
        ],
        "filters": _filters(header, [cells for _, cells in rows]),
        "figures": [
            {"id": f"figure-{number}-{figure.name}", "figure": figure, "json": _script_json(figure.plot)}
            for figure in figures
        ],
        "plan": _plan(campaign),
        "findings": {level: [f for f in campaign.findings if f.level == level] for level in LEVELS},
        "job": campaign.job.to_yaml() if campaign.job else "",
        "machines": sorted({row.trial.host for row in campaign.rows if row.trial.host}),
        "versions": sorted({row.trial.code_version for row in campaign.rows if row.trial.code_version}),
    }


def _script_json(plot: Any) -> Markup:
    """Inside a script element `</script` ends it, and `<!--<script` keeps its own end from ending it."""
    return Markup(json.dumps(json.loads(plot.to_json()), separators=(",", ":")).replace("<", "\\u003c"))


def _cells(row: Row, best: bool) -> list[Cell]:
    setup, outcome, predicted = row.trial.setup, row.trial.outcome, row.predicted
    counts = (setup.nodes, None, setup.dp, setup.tp, setup.pp, setup.mbs, setup.gbs)
    values = (*counts, outcome.memory_gib, outcome.seconds, outcome.tflops)
    *texts, notes = notes_row(row.trial)
    size = texts[1] or _size(row)
    cells = [Cell(text, value) for text, value in zip(texts, values, strict=True)]
    cells[1] = Cell(size, _billions(size))
    return [
        Cell("★" if best else "", 1.0 if best else 0.0),
        *cells,
        Cell(f"{predicted.seconds:.4g}", predicted.seconds) if predicted else Cell(""),
        Cell(f"{row.error:+.1%}", row.error) if row.error is not None else Cell(""),
        Cell(f"{predicted.memory_gib:.3g}GB", predicted.memory_gib) if predicted else Cell(""),
        Cell(outcome.status),
        Cell(" ".join(word for word in (row.trial.source.label, notes) if word)),
    ]


def _size(row: Row) -> str:
    """Of a run, whose model is known completely."""
    return f"{total_parameters(row.trial.job.model) / 1e9:.3g}B" if row.trial.job else ""


def _billions(size: str) -> float | None:
    try:
        return float(size.removesuffix("B"))
    except ValueError:
        return None


def _filters(header: tuple[str, ...], rows: list[list[Cell]]) -> list[dict[str, Any]]:
    """Columns with a few different values, sorted as numbers."""
    filters = []
    for name in FILTERED:
        column = header.index(name)
        values = {row[column].text: row[column].value or 0.0 for row in rows if row[column].text}
        if 1 < len(values) <= MOST_CHOICES:
            filters.append({"name": name, "column": column, "values": sorted(values, key=lambda v: (values[v], v))})
    return filters


def _plan(campaign: Campaign) -> list[dict[str, Any]]:
    return [
        {
            "layout": short_layout(each.layout),
            "nodes": each.nodes,
            "seconds": each.seconds,
            "low": each.seconds_low,
            "high": each.seconds_high,
            "memory": each.memory_gib,
            "limited": each.limited_by,
            "tie": each.tie and each.rank > 1,
        }
        for each in campaign.plan or ()
    ]
