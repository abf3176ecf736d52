"""Sums of many tensors over a group of ranks: sent in buckets, while the rest is still being computed."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET_NUMBERS = 2**23  # sent together: 32 MiB in fp32


class Reduction:
    """Tensors are summed in place. All ranks must add the same ones in the same order."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.bucket: list[Tensor] = []
        self.flying: list[tuple[Any, Tensor, list[Tensor]]] = []

    def add(self, tensor: Tensor) -> None:
        self.bucket.append(tensor)
        if sum(t.numel() for t in self.bucket) >= BUCKET_NUMBERS:
            self._send()

    def _send(self) -> None:
        lone = len(self.bucket) == 1 and self.bucket[0].is_contiguous()
        flat = self.bucket[0] if lone else torch.cat([t.flatten() for t in self.bucket])
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        self.flying.append((work, flat, self.bucket))
        self.bucket = []

    def finish(self) -> None:
        """Wait until every tensor holds its sum."""
        if self.bucket:
            self._send()
        for work, flat, tensors in self.flying:
            work.wait()
            if flat is not tensors[0]:
                parts = flat.split([t.numel() for t in tensors])
                torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])
        self.flying = []


def sum_over(tensors: Iterable[Tensor], group: Any) -> None:
    reduction = Reduction(group)
    for tensor in tensors:
        reduction.add(tensor)
    reduction.finish()
