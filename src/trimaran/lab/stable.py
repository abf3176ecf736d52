"""When enough iterations were measured: the median does not move any more."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def measured(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of the iterations after the warm-up."""
    return [record["seconds"] for record in records if "seconds" in record and not record.get("warm_up")]


def is_stable(records: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> bool:
    """The medians of the older and the newer half agree within the tolerance, after at least so many iterations."""
    seconds = measured(records)
    if len(seconds) < rule["least"]:
        return False
    half = len(seconds) // 2
    older, newer = median(seconds[:half]), median(seconds[half:])
    return bool(abs(newer / older - 1) <= rule["tolerance"])
