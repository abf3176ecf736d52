"""report.figures: functions that draw a Figure of a Campaign, or None where it has nothing to show.

Every figure carries the rows behind it, so that a slide, a spreadsheet and the page show the same numbers.
"""

from collections.abc import Callable

from trimaran.report.campaign import Campaign
from trimaran.report.figures.breakdown import memory, parts
from trimaran.report.figures.figure import Figure
from trimaran.report.figures.heat import micro_batches, tensor_pipeline
from trimaran.report.figures.measured import accuracy, seconds
from trimaran.report.figures.nodes import nodes
from trimaran.report.figures.timeline import timeline

FIGURES: tuple[Callable[[Campaign], Figure | None], ...] = (
    seconds,
    memory,
    parts,
    accuracy,
    tensor_pipeline,
    micro_batches,
    nodes,
    timeline,
)


def draw_figures(campaign: Campaign) -> list[Figure]:
    return [figure for draw in FIGURES if (figure := draw(campaign)) is not None]


__all__ = ["Figure", "draw_figures"]
