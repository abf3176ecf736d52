"""Latency and bandwidth: the line through measured times with the least squares of log errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, nnls  # type: ignore[import-untyped]

Array = npt.NDArray[np.float64]
LEAST = 1e-9  # share of the largest time: the latency may be zero, but not its logarithm


@dataclass(frozen=True)
class LatencyBandwidth:
    """seconds = starts x latency + moved / rate."""

    latency_seconds: float
    bytes_per_s: float
    scatter: float  # standard deviation of the log errors


def fit_latency_bandwidth(
    starts: Sequence[float], moved_bytes: Sequence[float], seconds: Sequence[float]
) -> LatencyBandwidth:
    """Relative errors, otherwise the largest message dominates the fit; of logarithms, so that twice and half
    count the same."""
    measured, largest = np.asarray(seconds, float), float(np.max(moved_bytes))
    terms = np.column_stack([starts, np.asarray(moved_bytes, float) / largest])  # both unknowns in seconds
    start, _ = nnls(terms / measured[:, None], np.ones(len(measured)))

    def errors(x: Array) -> Array:
        return np.asarray(np.log(terms @ np.exp(x) / measured))

    fit = least_squares(errors, np.log(np.maximum(start, LEAST * measured.max())))
    latency, transfer = np.exp(fit.x)
    return LatencyBandwidth(float(latency), largest / float(transfer), float(np.std(errors(fit.x))))
