"""Loss spikes: noted in the log, because hours later they explain a curve."""

from collections import deque
from itertools import pairwise
from math import inf, isfinite, sqrt
from statistics import median

WINDOW = 50  # losses
NEEDED = 20  # before any loss is called a spike
DEVIATIONS = 8.0
LEAST = 0.05  # of the median: smooth losses deviate by nearly nothing


class SpikeDetector:
    """Compares each loss with the median of those before it, in units of their noise.

    The noise is estimated from differences of neighbours: otherwise a loss that falls quickly hides its own spikes.
    """

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=WINDOW)

    def threshold(self) -> float:
        """Above which a loss is a spike."""
        if len(self.losses) < NEEDED:
            return inf
        middle = median(self.losses)
        difference = median(abs(later - earlier) for earlier, later in pairwise(self.losses))
        deviation = 1.4826 * difference / sqrt(2)  # a normal distribution's sigma from the median of such differences
        return middle + max(DEVIATIONS * deviation, LEAST * middle)

    def is_spike(self, loss: float) -> bool:
        threshold = self.threshold()
        if isfinite(loss):
            self.losses.append(loss)
        return loss > threshold
