"""Which set of a blend gives sample number n, and which of its own samples.

Megatron takes, sample after sample, the set that lags most behind its weight. That keeps every prefix of the samples
close to the weights, but to know sample n all before it must be counted. Here each set's k-th sample has a time,
(k + 1/2) / weight, and samples come in the order of their times (Webster's method): as close to the weights, and any
number is reached directly. After n samples a set of S has had weight·n, give or take less than S samples (tested).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trimaran.data.tokens import Ints

BLOCK = 2**16  # units of time, and so about as many samples, that are sorted at once
_KEPT = 4


class Order:
    """Sets by number; weights need not add up to one."""

    def __init__(self, weights: Sequence[float], block: int = BLOCK) -> None:
        given = np.asarray(weights, np.float64)
        self.weights, self.block = given / given.sum(), block
        self.blocks: dict[int, tuple[Ints, Ints]] = {}

    def place(self, number: int) -> tuple[int, int]:
        """The set of sample `number`, and the number of the sample in it."""
        block = max(number // self.block - 1, 0)  # within half a sample a set of the right one
        while int(self._taken(block + 1).sum()) <= number:
            block += 1
        while block and int(self._taken(block).sum()) > number:
            block -= 1
        sets, numbers = self._sorted(block)
        at = number - int(self._taken(block).sum())
        return int(sets[at]), int(numbers[at])

    def _taken(self, block: int) -> Ints:
        """Samples of each set whose time is before the block's."""
        taken: Ints = np.floor(self.weights * (block * self.block) + 0.5).astype(np.int64)
        return taken

    def _sorted(self, block: int) -> tuple[Ints, Ints]:
        if block not in self.blocks:
            begin, end = self._taken(block), self._taken(block + 1)
            sets = np.repeat(np.arange(len(begin)), end - begin)
            numbers: Ints = np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)])
            times: npt.NDArray[np.float64] = (numbers + 0.5) / self.weights[sets]
            order = np.lexsort((sets, times))
            while len(self.blocks) >= _KEPT:
                del self.blocks[next(iter(self.blocks))]
            self.blocks[block] = sets[order], numbers[order]
        return self.blocks[block]
