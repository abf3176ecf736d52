"""ProbeWorld: the ranks that measure together, and on which nodes they are."""

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trimaran.spec import Mistake

TIMEOUT = timedelta(seconds=120)  # longer than any single measurement


@dataclass(frozen=True)
class ProbeWorld:
    device: torch.device
    rank: int = 0
    nodes: tuple[tuple[int, ...], ...] = ((0,),)  # the ranks of each

    @property
    def size(self) -> int:
        return sum(len(node) for node in self.nodes)

    @property
    def per_node(self) -> int:
        return len(self.nodes[0])

    def mean(self, value: float, counts: bool = True) -> float:
        """Over the ranks whose value counts. Also a barrier."""
        if self.size == 1:
            return value
        sums = torch.tensor([value if counts else 0.0, float(counts)], dtype=torch.float64)
        dist.all_reduce(sums)  # on the CPU, by gloo, also beside nccl
        return float(sums[0] / sums[1])

    def max(self, value: float) -> float:
        if self.size == 1:
            return value
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest)


def init_probe_world(rank: int, local_rank: int, size: int, store: Any, host: str | None = None) -> ProbeWorld:
    """Join the process group through the store. Ranks with the same host name are on one node."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    if size == 1:
        return ProbeWorld(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    hosts: list[str] = [""] * size
    dist.all_gather_object(hosts, host or socket.gethostname())
    return ProbeWorld(device, rank, nodes_of(hosts))


def nodes_of(hosts: list[str]) -> tuple[tuple[int, ...], ...]:
    """The ranks on each host, in the order of the first of them."""
    nodes = tuple(tuple(i for i, name in enumerate(hosts) if name == host) for host in dict.fromkeys(hosts))
    counts = sorted({len(node) for node in nodes})
    if len(counts) > 1:
        raise Mistake(
            f"The nodes have different numbers of ranks ({', '.join(map(str, counts))}), but a cluster has equal nodes;"
            f" start {counts[0]} on each."
        )
    return nodes
