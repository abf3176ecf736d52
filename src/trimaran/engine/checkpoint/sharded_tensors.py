"""Which shard of a full tensor a rank has, and planners with which PyTorch's distributed checkpoint (DCP) saves it.

A checkpoint holds full tensors by name, whatever layout wrote them: any other layout reads the chunks it needs. The
padding of the vocabulary, which depends on tp, is left out. All are in fp32, because 8-bit moments in blocks of 256
cannot be resharded. A GPU has no room for all of those in fp32: to be saved they are dequantized on the host.
"""

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import MasterWeight
from trimaran.spec import Mistake, Model
from trimaran.spec.tensors import VOCABULARY


@dataclass(frozen=True)
class Shard:
    """A contiguous chunk of a full tensor."""

    full: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    writes: bool  # whether this rank, of those that have a copy, saves it

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(Size(self.offsets), Size(self.sizes))

    def without_padding(self, local: Tensor) -> Tensor:
        return local[: self.sizes[0]]


def shard_of(master: MasterWeight, world: World, model: Model) -> Shard:
    tensor, layout = master.tensor, world.layout
    full, offsets, sizes = list(tensor.shape), list(master.offsets(world)), list(master.value.shape)
    if tensor.name in VOCABULARY:
        full[0] = model.vocab
        sizes[0] = min(max(model.vocab - offsets[0], 0), sizes[0])
    # Ranks with the same copy take turns by name, so that all write about as much.
    turn = zlib.crc32(tensor.name.encode())
    first = (tensor.cut is not None or turn % layout.tp == world.tp_rank) and (
        master.sharded or turn % layout.dp == world.dp_rank
    )
    return Shard(tuple(full), tuple(offsets), tuple(sizes), first and not master.tied_copy and sizes[0] > 0)


def is_quantized(tensor: Tensor) -> bool:
    """A moment of 8-bit Adam."""
    return type(tensor) is not Tensor and hasattr(tensor, "dequantize")


def dequantized(tensor: Any) -> Tensor:
    """On the host: beside a step's gradients a GPU may have no room for even one moment in fp32."""
    value: Tensor = tensor.cpu().dequantize() if is_quantized(tensor) else tensor
    return value


class ShardSavePlanner(DefaultSavePlanner):
    """For a flat dict of local tensors, with a Shard for each."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.shards = shards

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([self._item(name, shard) for name, shard in self.shards.items() if shard.writes])
        return self.plan

    def _item(self, name: str, shard: Shard) -> WriteItem:
        data = TensorWriteData(shard.chunk, TensorProperties(dtype=torch.float32), Size(shard.full))
        return WriteItem(index=MetadataIndex(name, shard.chunk.offsets), type=WriteItemType.SHARD, tensor_data=data)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.shards[index.fqn].without_padding(self.state_dict[index.fqn])


class ShardLoadPlanner(DefaultLoadPlanner):
    """Into such a dict. A quantized tensor is read in fp32, and quantized again after its last chunk."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.shards = shards
        self.chunks_left: Counter[str] = Counter()
        self.full_precision: dict[str, Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, shard in self.shards.items():
            saved = self.metadata.state_dict_metadata.get(name)
            if not isinstance(saved, TensorStorageMetadata):
                raise Mistake(f"The checkpoint holds no {name}.")
            if shard.sizes[0]:
                items += create_read_items_for_chunk_list(name, saved, [shard.chunk])
        self.chunks_left = Counter(item.dest_index.fqn for item in items)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        name = index.fqn
        tensor: Tensor = self.state_dict[name]
        if is_quantized(tensor):
            if name not in self.full_precision:
                self.full_precision[name] = torch.zeros(tensor.shape, device=tensor.device)
            tensor = self.full_precision[name]
        return self.shards[name].without_padding(tensor)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        name = read_item.dest_index.fqn
        self.chunks_left[name] -= 1
        if name in self.full_precision and not self.chunks_left[name]:
            self.state_dict[name].copy_(self.full_precision.pop(name))
