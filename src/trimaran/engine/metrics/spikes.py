"""A loss that jumps: noted, because hours later it explains a curve."""

from collections import deque
from itertools import pairwise
from math import inf, isfinite, sqrt
from statistics import median

REMEMBERED = 50  # losses
NEEDED = 20  # before anything is called unusual
DEVIATIONS = 8.0
LEAST = 0.05  # of the median: smooth losses deviate by nearly nothing


class Spikes:
    """Compares each loss with the median of those before it, in units of their noise.

    The noise is taken from the steps between neighbours: a loss that falls quickly would else hide its own spikes.
    """

    def __init__(self) -> None:
        self.before: deque[float] = deque(maxlen=REMEMBERED)

    def usual(self) -> tuple[float, float]:
        """The median of the last losses, and above what a loss is a spike."""
        if len(self.before) < NEEDED:
            return inf, inf
        middle = median(self.before)
        step = median(abs(later - earlier) for earlier, later in pairwise(self.before))
        deviation = 1.4826 * step / sqrt(2)  # a normal distribution's sigma from the median of such differences
        return middle, middle + max(DEVIATIONS * deviation, LEAST * middle)

    def is_spike(self, loss: float) -> bool:
        _, limit = self.usual()
        if isfinite(loss):
            self.before.append(loss)
        return loss > limit
