"""What every check needs: the Finding it yields, the place of a row in its source, the limits of a row's device."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Self

from trimaran.spec import Device, Setup, Trial, presets

Level = Literal["impossible", "contradictory", "suspicious"]
LEVELS: dict[Level, str] = {
    "impossible": "cannot be as printed, and the evidence forces one correction",
    "contradictory": "cannot all be true, but nothing says which part is wrong",
    "suspicious": "possible, and worth a look",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with one trial."""

    level: Level
    check: str
    trial: str
    where: str
    message: str
    corrections: dict[str, Any] = field(default_factory=dict)  # by the names of the published CSV's columns
    others: tuple[str, ...] = ()  # the rows that are the evidence

    @classmethod
    def of(
        cls,
        trial: Trial,
        level: Level,
        check: str,
        message: str,
        corrections: dict[str, Any] | None = None,
        others: tuple[Trial, ...] = (),
    ) -> Self:
        evidence = tuple(where(other) for other in others)
        return cls(level, check, trial.id, where(trial), message, corrections or {}, evidence)


def where(trial: Trial) -> str:
    """How a person finds the row again: the source's own label, or file and line."""
    source = trial.source
    place = f"{source.file}:{source.line}" if source.line else source.file
    return f"{source.label} ({place})" if source.label else place or trial.id


@cache
def known_devices() -> dict[str, Device]:
    clusters = [presets.cluster(name) for name in presets.names("clusters") if name != presets.HERE]
    return {cluster.device.name: cluster.device for cluster in clusters}


def peak_tflops(setup: Setup) -> float | None:
    """The device's peak in this precision; where that is unknown, in its fastest 16- or 32-bit format."""
    device = known_devices().get(setup.device or "")
    if device is None:
        return None
    if setup.precision in device.peak_tflops:
        return device.peak_tflops[setup.precision]
    return max(peak for name, peak in device.peak_tflops.items() if name != "fp8")


def capacity_gib(setup: Setup) -> float | None:
    device = known_devices().get(setup.device or "")
    return device.memory_gib if device else None
