"""Why this layout: the best against the best with another tp, another pp, another micro batch."""

import numpy as np

from trimaran.planner.explain import PART_LABELS, step_breakdown
from trimaran.planner.question import Question
from trimaran.planner.ranking import Ranking

COMPARED = {"tp": "tensor width", "pp": "pipeline depth", "mbs": "micro batch"}
CUT = ("tp", "pp", "dp", "mbs")


def reasons(question: Question, ranking: Ranking, objective: str = "time") -> list[str]:
    """Three sentences about the first row of a ranking."""
    return [_reason(question, ranking, field, objective) for field in COMPARED]


def _reason(question: Question, ranking: Ranking, field: str, objective: str) -> str:
    values = getattr(ranking.rows, field)
    mine = f"{field} {int(values[0])}"
    others = np.flatnonzero(values != values[0])
    if not others.size:
        fixed = " because it is fixed" if field in question.fixed else ""
        return f"{mine}: no other {COMPARED[field]} gives a layout that fits{fixed}."
    other = int(others[0])
    named = ", ".join(f"{name} {int(getattr(ranking.rows, name)[other])}" for name in CUT)
    more = ranking.score[other] / ranking.score[0] - 1
    if objective == "memory":
        return f"{mine}: the best with another ({named}) needs {ranking.memory_gib[other]:.1f} GiB, {more:.1%} more."
    what = f"takes {ranking.seconds[other]:.2f} s" + (", " if objective == "time" else " and ")
    what += f"{more:.1%} more" + ("" if objective == "time" else " device time")
    return f"{mine}: the best with another ({named}) {what}; {describe_difference(question, ranking, other)}."


def describe_difference(question: Question, ranking: Ranking, other: int) -> str:
    """The part of the step that grows most from the first row to the other, and what is saved in exchange."""
    pair = ranking.take(np.array([0, other]))
    parts = step_breakdown(pair.rows, question.cluster, question.trainer)
    grown = {name: float(np.diff(np.broadcast_to(value, (2,)))[0]) for name, value in parts.seconds.items()}
    lost, won = max(grown, key=lambda name: grown[name]), min(grown, key=lambda name: grown[name])
    said = f"it loses {grown[lost]:.2f} s to {PART_LABELS[lost]}"
    if grown[won] < -0.005:
        said += f" and wins {-grown[won]:.2f} s of {PART_LABELS[won]}"
    return said
