"""Latency and bandwidth: the straight line through measured times with the smallest errors of their logarithms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, nnls  # type: ignore[import-untyped]

Array = npt.NDArray[np.float64]
LEAST = 1e-9  # share of the largest time: a line may have no latency to speak of


@dataclass(frozen=True)
class Line:
    """seconds = starts x latency + moved / rate."""

    latency_seconds: float
    bytes_per_s: float
    scatter: float  # standard deviation of the logarithms around it


def line_through(starts: Sequence[float], moved_bytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Relative errors, for else the largest message is all that counts; logarithms, for twice and half are as wrong."""
    wanted, largest = np.asarray(seconds, float), float(np.max(moved_bytes))
    sides = np.column_stack([starts, np.asarray(moved_bytes, float) / largest])  # both unknowns in seconds
    start, _ = nnls(sides / wanted[:, None], np.ones(len(wanted)))

    def errors(x: Array) -> Array:
        return np.asarray(np.log(sides @ np.exp(x) / wanted))

    found = least_squares(errors, np.log(np.maximum(start, LEAST * wanted.max())))
    latency, transfer = np.exp(found.x)
    return Line(float(latency), largest / float(transfer), float(np.std(errors(found.x))))
