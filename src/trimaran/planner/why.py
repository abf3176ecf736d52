"""Why this one: the best layout against the best with another tp, another pp, another micro batch."""

import numpy as np

from trimaran.planner.parts import MEANING, PARTS, parts_of
from trimaran.planner.question import Question
from trimaran.planner.ranking import Found

ASKED = {"tp": "tensor width", "pp": "pipeline depth", "mbs": "micro batch"}
SHORT_OF_LAYOUT = ("tp", "pp", "dp", "mbs")


def why(question: Question, found: Found, objective: str = "time") -> list[str]:
    """Three sentences about the first of these rows, which are sorted."""
    return [_sentence(question, found, field, objective) for field in ASKED]


def _sentence(question: Question, found: Found, field: str, objective: str) -> str:
    values = getattr(found.rows, field)
    mine = f"{field} {int(values[0])}"
    others = np.flatnonzero(values != values[0])
    if not others.size:
        fixed = " because it is fixed" if field in question.fixed else ""
        return f"{mine}: no other {ASKED[field]} gives a layout that fits{fixed}."
    other = int(others[0])
    named = ", ".join(f"{name} {int(getattr(found.rows, name)[other])}" for name in SHORT_OF_LAYOUT)
    more = found.score[other] / found.score[0] - 1
    if objective == "memory":
        return f"{mine}: the best with another ({named}) needs {found.memory_gib[other]:.1f} GiB, {more:.1%} more."
    what = f"takes {found.seconds[other]:.2f} s" + (", " if objective == "time" else " and ")
    what += f"{more:.1%} more" + ("" if objective == "time" else " device time")
    return f"{mine}: the best with another ({named}) {what}; {difference(question, found, other)}."


def difference(question: Question, found: Found, other: int) -> str:
    """The part of the step that grew most, and what was won in exchange."""
    pair = found.take(np.array([0, other]))
    parts = parts_of(pair.rows, question.cluster, question.trainer)
    grown = {name: float(np.diff(np.broadcast_to(getattr(parts, name), (2,)))[0]) for name in PARTS}
    lost, won = max(grown, key=lambda name: grown[name]), min(grown, key=lambda name: grown[name])
    said = f"it loses {grown[lost]:.2f} s to {MEANING[lost]}"
    if grown[won] < -0.005:
        said += f" and wins {-grown[won]:.2f} s of {MEANING[won]}"
    return said
