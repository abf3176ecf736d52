"""Where a rank's tensors lie in the whole ones, and how PyTorch's distributed checkpoint writes and reads them so.

A checkpoint holds whole tensors by name, whatever layout wrote them: any other layout reads the boxes it needs. The
padding of the vocabulary, which depends on tp, is left out.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Size, Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from trimaran.cost.tensors import VOCABULARY
from trimaran.engine.weights import Slot
from trimaran.engine.world import World
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


def part_of(slot: Slot, world: World, model: Model) -> Part:
    tensor, layout = slot.tensor, world.layout
    whole, offsets, sizes = list(tensor.shape), list(slot.offsets(world)), list(slot.value.shape)
    if tensor.name in VOCABULARY:
        whole[0] = model.vocab
        sizes[0] = min(max(model.vocab - offsets[0], 0), sizes[0])
    # The copies of a tensor take turns, so that all ranks write about as much.
    turn = zlib.crc32(tensor.name.encode())
    first = (tensor.cut is not None or turn % layout.tp == world.tp_rank) and (
        slot.sharded or turn % layout.dp == world.dp_rank
    )
    return Part(tuple(whole), tuple(offsets), tuple(sizes), first and not slot.copy and sizes[0] > 0)


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
        return self.state_dict[index.fqn]


class LoadParts(DefaultLoadPlanner):
    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.parts = parts

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, part in self.parts.items():
            saved = self.metadata.state_dict_metadata.get(name)
            if not isinstance(saved, TensorStorageMetadata):
                raise Mistake(f"The checkpoint holds no {name}.")
            if part.sizes[0]:
                items += create_read_items_for_chunk_list(name, saved, [part.chunk])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn]
