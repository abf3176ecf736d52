"""Bucketed all-reduce of many tensors, overlapped with the computation of the rest."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET_ELEMENTS = 2**23  # 32 MiB in fp32


class BucketedAllReduce:
    """Sums tensors in place. All ranks must add the same ones in the same order."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.bucket: list[Tensor] = []
        self.in_flight: list[tuple[Any, Tensor, list[Tensor]]] = []

    def add(self, tensor: Tensor) -> None:
        self.bucket.append(tensor)
        if sum(t.numel() for t in self.bucket) >= BUCKET_ELEMENTS:
            self._launch()

    def _launch(self) -> None:
        single = len(self.bucket) == 1 and self.bucket[0].is_contiguous()
        flat = self.bucket[0] if single else torch.cat([t.flatten() for t in self.bucket])
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        self.in_flight.append((work, flat, self.bucket))
        self.bucket = []

    def finish(self) -> None:
        """Wait until every tensor holds its sum."""
        if self.bucket:
            self._launch()
        for work, flat, tensors in self.in_flight:
            work.wait()
            if flat is not tensors[0]:
                parts = flat.split([t.numel() for t in tensors])
                torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])
        self.in_flight = []


def all_reduce_bucketed(tensors: Iterable[Tensor], group: Any) -> None:
    reduction = BucketedAllReduce(group)
    for tensor in tensors:
        reduction.add(tensor)
    reduction.finish()
