"""Finding: one thing that is wrong with one trial."""

from dataclasses import dataclass, field
from typing import Any, Literal

from trimaran.spec import Trial

Level = Literal["impossible", "contradictory", "suspicious"]
LEVELS: tuple[Level, ...] = ("impossible", "contradictory", "suspicious")
MEANING = {
    "impossible": "cannot be as printed, and the evidence forces one correction",
    "contradictory": "cannot all be true, but nothing says which part is wrong",
    "suspicious": "possible, and worth a look",
}


@dataclass(frozen=True)
class Finding:
    level: Level
    check: str
    trial: str
    where: str
    message: str
    corrections: dict[str, Any] = field(default_factory=dict)  # by the names of the published CSV's columns
    others: tuple[str, ...] = ()  # where the evidence stands


def where(trial: Trial) -> str:
    """How a person finds the row again: the source's own label, or file and line."""
    source = trial.source
    place = f"{source.file}:{source.line}" if source.line else source.file
    return f"{source.label} ({place})" if source.label else place or trial.id
