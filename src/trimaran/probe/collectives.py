"""Seconds of collectives over message sizes, inside a node and between nodes.

Groups of one size work at the same time, as the tensor or data ranks of a layout do: two groups that share a link
each get half of it, and that is what training will see.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from trimaran.probe.measured import Collective, CollectiveKind
from trimaran.probe.timing import Stopwatch, Work
from trimaran.probe.world import World

# torch 2.13 calls them by new names and warns of the old ones, which 2.11 has alone.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Team:
    """Equal groups of ranks that work at once; `group` is this rank's own."""

    where: Literal["inside", "between"]
    groups: tuple[tuple[int, ...], ...]
    group: Any
    kinds: tuple[CollectiveKind, ...]

    @property
    def size(self) -> int:
        return len(self.groups[0])


ALL_KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather", "reduce-scatter")


def teams(world: World) -> Iterator[Team]:
    """All divisors of a node's ranks; then all ranks of all nodes, and one rank of each node. Neighbours send."""
    if world.size == 1:
        return
    nodes, local = world.nodes, world.per_node
    for size in (size for size in range(2, local + 1) if local % size == 0):
        cut = tuple(node[i : i + size] for node in nodes for i in range(0, local, size))
        yield _team("inside", cut, ALL_KINDS if size == local else ("all-reduce",))
    if local > 1:
        yield _team("inside", tuple(node[i : i + 2] for node in nodes for i in range(0, local - 1, 2)), ("send",))
    if len(nodes) > 1:
        if local > 1:
            yield _team("between", (tuple(rank for node in nodes for rank in node),), ALL_KINDS)
        rails = tuple(zip(*nodes, strict=True))
        yield _team("between", rails, ("all-reduce",) if local > 1 else ALL_KINDS)
        yield _team("between", tuple(rail[i : i + 2] for rail in rails for i in range(0, len(nodes) - 1, 2)), ("send",))


def _team(where: Literal["inside", "between"], groups: tuple[tuple[int, ...], ...], kinds: Any) -> Team:
    """Every rank makes every group, in the same order, as PyTorch wants it."""
    mine, _ = dist.new_subgroups_by_enumeration([list(group) for group in groups])
    return Team(where, groups, mine, kinds)


def message_sizes(cuda: bool, quick: bool) -> list[int]:
    """From 1 KiB; up to what a layer's activations or gradients are."""
    last = 256 * 2**20 if cuda else 16 * 2**20
    if quick:
        return [2**10, 2**16, last // 4]
    return [size for size in (2**10 * 4**i for i in range(12)) if size <= last]


def collective(watch: Stopwatch, team: Team, kind: CollectiveKind, size: int) -> Collective:
    world = watch.world
    mine = next((group for group in team.groups if world.rank in group), None)
    share = max(1, size // 4 // team.size)  # fp32 elements of one rank's part
    work = _nothing if mine is None else WORK[kind](team.group, mine, world, share)
    return Collective(
        kind=kind,
        where=team.where,
        ranks=team.size,
        at_once=len(team.groups),
        bytes=4 * share * team.size,
        seconds=watch.seconds_together(work, mine is not None) / (2 if kind == "send" else 1),
    )


def _nothing() -> None:
    """Of a rank without a partner."""


def _all_reduce(group: Any, mine: tuple[int, ...], world: World, share: int) -> Work:
    whole = torch.zeros(share * len(mine), device=world.device)
    return lambda: dist.all_reduce(whole, group=group)


def _all_gather(group: Any, mine: tuple[int, ...], world: World, share: int) -> Work:
    part = torch.zeros(share, device=world.device)
    whole = torch.zeros(share * len(mine), device=world.device)
    return lambda: all_gather(whole, part, group=group)


def _reduce_scatter(group: Any, mine: tuple[int, ...], world: World, share: int) -> Work:
    part = torch.zeros(share, device=world.device)
    whole = torch.zeros(share * len(mine), device=world.device)
    return lambda: reduce_scatter(part, whole, group=group)


def _there_and_back(group: Any, mine: tuple[int, ...], world: World, share: int) -> Work:
    """A message to the partner and one back: half of it is one way, latency included."""
    whole = torch.zeros(share * len(mine), device=world.device)
    first, second = mine

    def send_first() -> None:
        dist.send(whole, second, group=group)
        dist.recv(whole, second, group=group)

    def send_second() -> None:
        dist.recv(whole, first, group=group)
        dist.send(whole, first, group=group)

    return send_first if world.rank == first else send_second


WORK: dict[CollectiveKind, Callable[[Any, tuple[int, ...], World, int], Work]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "send": _there_and_back,
}
