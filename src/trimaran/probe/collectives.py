"""Seconds of collectives over message sizes, inside a node and between nodes.

Groups of one size run concurrently, as the tensor or data ranks of a layout do: two groups that share a link get half
of it each, as in training.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from trimaran.probe.result import CollectiveKind, CollectiveTiming
from trimaran.probe.timing import Stopwatch, Work
from trimaran.probe.world import ProbeWorld

# torch 2.13 renamed these two and warns of the old names, which are the only ones in 2.11.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class ConcurrentGroups:
    """Disjoint groups of one size; `group` is this rank's process group."""

    where: Literal["inside", "between"]
    groups: tuple[tuple[int, ...], ...]
    group: Any
    kinds: tuple[CollectiveKind, ...]

    @property
    def size(self) -> int:
        return len(self.groups[0])


ALL_KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather", "reduce-scatter")


def concurrent_groups(world: ProbeWorld) -> Iterator[ConcurrentGroups]:
    """Of every size that divides a node's ranks; then all ranks of all nodes, and one rank of each node. Sends are
    between pairs of neighbours."""
    if world.size == 1:
        return
    nodes, local = world.nodes, world.per_node
    for size in (size for size in range(2, local + 1) if local % size == 0):
        cut = tuple(node[i : i + size] for node in nodes for i in range(0, local, size))
        yield _groups("inside", cut, ALL_KINDS if size == local else ("all-reduce",))
    if local > 1:
        yield _groups("inside", tuple(node[i : i + 2] for node in nodes for i in range(0, local - 1, 2)), ("send",))
    if len(nodes) > 1:
        if local > 1:
            yield _groups("between", (tuple(rank for node in nodes for rank in node),), ALL_KINDS)
        rails = tuple(zip(*nodes, strict=True))
        yield _groups("between", rails, ("all-reduce",) if local > 1 else ALL_KINDS)
        yield _groups(
            "between", tuple(rail[i : i + 2] for rail in rails for i in range(0, len(nodes) - 1, 2)), ("send",)
        )


def _groups(where: Literal["inside", "between"], groups: tuple[tuple[int, ...], ...], kinds: Any) -> ConcurrentGroups:
    """Every rank creates every group in the same order, as PyTorch requires."""
    mine, _ = dist.new_subgroups_by_enumeration([list(group) for group in groups])
    return ConcurrentGroups(where, groups, mine, kinds)


def message_sizes(cuda: bool, quick: bool) -> list[int]:
    """From 1 KiB to the size of a layer's activations or gradients."""
    last = 256 * 2**20 if cuda else 16 * 2**20
    if quick:
        return [2**10, 2**16, last // 4]
    return [size for size in (2**10 * 4**i for i in range(12)) if size <= last]


def time_collective(watch: Stopwatch, groups: ConcurrentGroups, kind: CollectiveKind, size: int) -> CollectiveTiming:
    world = watch.world
    mine = next((group for group in groups.groups if world.rank in group), None)
    share = max(1, size // 4 // groups.size)  # fp32 elements of one rank's part
    work = _work(kind, groups.group, mine, world, share) if mine else lambda: None
    return CollectiveTiming(
        kind=kind,
        where=groups.where,
        ranks=groups.size,
        at_once=len(groups.groups),
        bytes=4 * share * groups.size,
        seconds=watch.seconds_together(work, mine is not None) / (2 if kind == "send" else 1),
    )


def _work(kind: CollectiveKind, group: Any, mine: tuple[int, ...], world: ProbeWorld, share: int) -> Work:
    part = torch.zeros(share, device=world.device)
    whole = torch.zeros(share * len(mine), device=world.device)
    if kind == "all-reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all-gather":
        return lambda: all_gather(whole, part, group=group)
    if kind == "reduce-scatter":
        return lambda: reduce_scatter(part, whole, group=group)
    first, second = mine

    def send_first() -> None:
        dist.send(whole, second, group=group)
        dist.recv(whole, second, group=group)

    def receive_first() -> None:
        dist.recv(whole, first, group=group)
        dist.send(whole, first, group=group)

    return send_first if world.rank == first else receive_first  # a round trip, of which the caller takes half
