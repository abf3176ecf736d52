"""The processes of a run: this rank's coordinates in the grid of pipeline x data x tensor ranks, and its device."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Job, Layout
from trimaran.spec.own_engine import PAGE_MIB

TIMEOUT = timedelta(minutes=10)
ALLOCATOR = f"expandable_segments:True,large_segment_size_mb:{PAGE_MIB}"


@dataclass(frozen=True)
class World:
    """Ranks are ordered tp fastest, then dp, then pp: rank = pp x (DP x TP) + dp x TP + tp."""

    layout: Layout
    device: torch.device
    rank: int = 0
    mesh: DeviceMesh | None = None  # None: a single process, which needs no process group
    tied_group: Any = None  # first and last stage, on these two, where they share the embedding
    timeout: timedelta = TIMEOUT  # of a rank that waits for the others; every new process group needs it

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.layout.dp * self.layout.tp)

    @property
    def dp_rank(self) -> int:
        return self.rank // self.layout.tp % self.layout.dp

    @property
    def tp_rank(self) -> int:
        return self.rank % self.layout.tp

    @property
    def size(self) -> int:
        return self.layout.devices

    def group(self, axis: str) -> Any:
        assert self.mesh is not None
        return self.mesh.get_group(axis)

    @property
    def tensor_axis(self) -> TensorAxis:
        layout = self.layout
        if layout.tp == 1:
            return TensorAxis()
        return TensorAxis(layout.tp, self.tp_rank, self.group("tp"), layout.sequence_parallel)


def select_device(local_rank: int, cpu: bool) -> torch.device:
    """One GPU per process where there are any, unless the CPU is wanted. Expandable segments map its memory in pages,
    which leaves no fragments between large tensors except the rest of a page (cost.memory); so pages are small, not
    PyTorch's 20 MiB. PyTorch reads this setting at the first allocation."""
    if cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # its older name
        os.environ.setdefault("PYTORCH_ALLOC_CONF", ALLOCATOR)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def init_world(job: Job, timeout: timedelta, store: Any) -> World:
    """Join the process group through the store; RANK and LOCAL_RANK say which process this is."""
    layout, tied = job.layout, job.model.tied_embeddings
    rank = int(os.environ.get("RANK", "0"))
    device = select_device(int(os.environ.get("LOCAL_RANK", "0")), cpu=job.cluster.is_local_cpu)
    if layout.devices == 1:
        return World(layout, device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=layout.devices,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    return build_world(layout, tied, device, rank, timeout)


def build_world(layout: Layout, tied: bool, device: torch.device, rank: int, timeout: timedelta = TIMEOUT) -> World:
    """The mesh over an initialized process group. Its groups are made here, because those of init_device_mesh have
    PyTorch's timeout, of 30 minutes (NCCL: 10), whatever that of the process group is."""
    names = ("pp", "dp", "tp")
    grid = torch.arange(layout.devices).reshape(layout.pp, layout.dp, layout.tp)
    groups = [axis_group(grid.movedim(axis, -1).flatten(0, 1).tolist(), timeout) for axis in range(len(names))]
    mesh = DeviceMesh.from_group(groups, device.type, grid, mesh_dim_names=names)
    tied_group = None
    if layout.pp > 1 and tied:
        pairs = torch.stack([grid[0], grid[-1]], dim=-1).flatten(0, 1).tolist()
        tied_group, _ = dist.new_subgroups_by_enumeration(pairs, timeout=timeout)
    return World(layout, device, rank, mesh, tied_group, timeout)


def axis_group(groups: list[list[int]], timeout: timedelta) -> Any:
    """This rank's group, of these which together are all ranks."""
    if len(groups) == 1:
        return dist.group.WORLD
    if dist.get_backend() == "nccl":  # one call for all of them, as in init_device_mesh
        return dist.split_group(split_ranks=groups, timeout=timeout)
    group, _ = dist.new_subgroups_by_enumeration(groups, timeout=timeout)
    return group
