"""A blend of data sources: which source gives sample number n, and which of its own samples.

Megatron takes, sample after sample, the source that lags most behind its weight. That keeps every prefix of the
samples close to the weights, but sample n depends on a count over all before it. Here the k-th sample of a source has
the time (k + 1/2) / weight, and samples are ordered by time (Webster's method): as close to the weights, with random
access. After n samples a source out of S has given weight·n samples, off by less than S (tested).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trimaran.data.indexed_dataset import Ints

BLOCK = 2**16  # units of time, and so about as many samples, that are sorted at once
_CACHED = 4  # blocks


class BlendOrder:
    """Weights need not add up to one."""

    def __init__(self, weights: Sequence[float], block: int = BLOCK) -> None:
        self.weights = np.asarray(weights, np.float64) / sum(weights)
        self.block = block
        self._sorted = lru_cache(_CACHED)(self._sort)

    def locate(self, number: int) -> tuple[int, int]:
        """The source of sample `number`, and the number of the sample in it."""
        block = max(number // self.block - 1, 0)  # at most half a sample per source off
        while int(self._counts(block + 1).sum()) <= number:
            block += 1
        while block and int(self._counts(block).sum()) > number:
            block -= 1
        sources, numbers = self._sorted(block)
        at = number - int(self._counts(block).sum())
        return int(sources[at]), int(numbers[at])

    def _counts(self, block: int) -> Ints:
        """Samples of each source with a time before the block's."""
        counts: Ints = np.floor(self.weights * (block * self.block) + 0.5).astype(np.int64)
        return counts

    def _sort(self, block: int) -> tuple[Ints, Ints]:
        begin, end = self._counts(block), self._counts(block + 1)
        sources = np.repeat(np.arange(len(begin)), end - begin)
        numbers: Ints = np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)])
        times: npt.NDArray[np.float64] = (numbers + 0.5) / self.weights[sources]
        order = np.lexsort((sources, times))
        return sources[order], numbers[order]
