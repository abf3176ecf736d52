"""Where a rank's tensors lie in the whole ones, and how PyTorch's distributed checkpoint writes and reads them so.

A checkpoint holds whole tensors by name, whatever layout wrote them: any other layout reads the boxes it needs. The
padding of the vocabulary, which depends on tp, is left out. All are in fp32, because 8-bit moments in blocks of 256
would not survive another cut. A GPU has no room for all of those in fp32: to be saved they go to the host.
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

from trimaran.cost.tensors import VOCABULARY
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import MasterWeight
from trimaran.spec import Mistake, Model


@dataclass(frozen=True)
class Part:
    """A box of a whole tensor."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    writes: bool  # whether this rank is the one of its copies that saves it

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(Size(self.offsets), Size(self.sizes))

    def of(self, local: Tensor) -> Tensor:
        """The rank's tensor without padding."""
        return local[: self.sizes[0]]


def part_of(master: MasterWeight, world: World, model: Model) -> Part:
    tensor, layout = master.tensor, world.layout
    whole, offsets, sizes = list(tensor.shape), list(master.offsets(world)), list(master.value.shape)
    if tensor.name in VOCABULARY:
        whole[0] = model.vocab
        sizes[0] = min(max(model.vocab - offsets[0], 0), sizes[0])
    # The copies of a tensor take turns, so that all ranks write about as much.
    turn = zlib.crc32(tensor.name.encode())
    first = (tensor.cut is not None or turn % layout.tp == world.tp_rank) and (
        master.sharded or turn % layout.dp == world.dp_rank
    )
    return Part(tuple(whole), tuple(offsets), tuple(sizes), first and not master.tied_copy and sizes[0] > 0)


def is_packed(tensor: Tensor) -> bool:
    """In 8 bits."""
    return type(tensor) is not Tensor and hasattr(tensor, "dequantize")


def unpacked(tensor: Any) -> Tensor:
    """Of what is packed, on the host: beside a step's gradients a GPU may have no room for even one in fp32."""
    found: Tensor = tensor.cpu().dequantize() if is_packed(tensor) else tensor
    return found


class SaveParts(DefaultSavePlanner):
    """Of a flat dict of local tensors, with a Part for each."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.parts = parts

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([self._item(name, part) for name, part in self.parts.items() if part.writes])
        return self.plan

    def _item(self, name: str, part: Part) -> WriteItem:
        chunk = part.chunk
        properties = TensorProperties.create_from_tensor(self.state_dict[name])
        return WriteItem(
            index=MetadataIndex(name, chunk.offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk, properties, Size(part.whole)),
        )

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.parts[index.fqn].of(self.state_dict[index.fqn])


class LoadParts(DefaultLoadPlanner):
    """Into such a dict. What is packed is filled in fp32, and packed again when its last box was read."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.parts = parts
        self.boxes_left: Counter[str] = Counter()
        self.filling: dict[str, Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, part in self.parts.items():
            saved = self.metadata.state_dict_metadata.get(name)
            if not isinstance(saved, TensorStorageMetadata):
                raise Mistake(f"The checkpoint holds no {name}.")
            if part.sizes[0]:
                items += create_read_items_for_chunk_list(name, saved, [part.chunk])
        self.boxes_left = Counter(item.dest_index.fqn for item in items)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        name = index.fqn
        tensor: Tensor = self.state_dict[name]
        if is_packed(tensor):
            if name not in self.filling:
                self.filling[name] = torch.zeros(tensor.shape, device=tensor.device)
            tensor = self.filling[name]
        return self.parts[name].of(tensor)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        name = read_item.dest_index.fqn
        self.boxes_left[name] -= 1
        if name in self.filling and not self.boxes_left[name]:
            self.state_dict[name].copy_(self.filling.pop(name))
