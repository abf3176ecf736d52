"""Position: where a run is, everything that is not a tensor."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Position:
    iteration: int = 0
    consumed: int = 0  # samples
    skipped: int = 0
    nan: int = 0
    loss_scale: dict[str, float] = field(default_factory=dict)
