"""Batch: samples per step, and the ramp-up that leads to it."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Self

from pydantic import model_validator

from trimaran.spec.base import Spec
from trimaran.spec.bounds import MOST_RAMP_SIZES, BatchSize, Samples


class Ramp(Spec):
    """Megatron's --rampup-batch-size START INCREMENT SAMPLES."""

    start: BatchSize
    increment: BatchSize
    samples: Samples


class Batch(Spec):
    """The global batch."""

    size: BatchSize
    ramp: Ramp | None = None

    @model_validator(mode="after")
    def _check_ramp(self) -> Self:
        if self.ramp is None:
            return self
        start, increment = self.ramp.start, self.ramp.increment
        if start > self.size:
            raise ValueError(
                f"the ramp-up starts at {start}, above the global batch {self.size};"
                f" the nearest that works: start {self.size} (no ramp-up)."
            )
        if (self.size - start) // increment >= MOST_RAMP_SIZES:
            raise ValueError(
                f"a ramp-up from {start} to {self.size} in steps of {increment} has"
                f" {(self.size - start) // increment + 1:,} batch sizes, of which {MOST_RAMP_SIZES:,} are allowed;"
                f" the nearest that works: an increment of {-(-(self.size - start) // (MOST_RAMP_SIZES - 1))} or more."
            )
        if (self.size - start) % increment:
            near = self.size - round((self.size - start) / increment) * increment
            raise ValueError(
                f"a ramp-up from {start} in steps of {increment} never reaches {self.size} exactly;"
                f" the nearest that works: start {near if near > 0 else near + increment}."
            )
        return self

    def sizes(self) -> tuple[int, ...]:
        """Every global batch size of the run in order, the full one last."""
        if self.ramp is None:
            return (self.size,)
        return tuple(range(self.ramp.start, self.size + 1, self.ramp.increment))

    def ramp_steps(self) -> Iterator[tuple[int, int]]:
        """Each batch size of the ramp-up and how many steps in succession have it; the full size is not among them."""
        consumed = 0
        while self.ramp is not None and (size := self.size_after(consumed)) < self.size:
            further = range(1, self.ramp.samples // size + 2)
            grown = bisect_left(further, True, key=lambda n: self.size_after(consumed + n * size) > size)
            yield size, 1 + grown
            consumed += (1 + grown) * size

    def size_after(self, samples: int) -> int:
        """The batch size in force when this many samples have been consumed (Megatron's rule)."""
        if self.ramp is None or samples > self.ramp.samples or self.size == self.ramp.start:
            return self.size
        samples_per_increment = self.ramp.samples / ((self.size - self.ramp.start) / self.ramp.increment)
        return min(self.size, self.ramp.start + int(samples / samples_per_increment) * self.ramp.increment)
