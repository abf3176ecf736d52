"""Layout: how a model is sharded over devices, and which layers each pipeline stage gets."""

from typing import Literal

from pydantic import Field

from trimaran.spec.base import Spec
from trimaran.spec.bounds import BatchSize, Devices, Layers, LayersOrZero
from trimaran.spec.trainer import Recompute, Schedule


class Layout(Spec):
    dp: Devices = 1
    tp: Devices = 1
    pp: Devices = 1
    virtual_stages: Layers = Field(1, description="Chunks of layers per device, for the interleaved schedule.")
    schedule: Schedule = "1f1b"
    micro_batch: BatchSize = 1
    zero: Literal[0, 1, 2, 3] = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    split: Literal["even", "weighted"] | tuple[LayersOrZero, ...] = Field(
        "even",
        description="even: equal layers; weighted: embedding and LM head count as one layer each;"
        " or a list with the layers of every stage.",
    )

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def stages(self) -> int:
        """Pipeline stages including virtual ones."""
        return self.pp * self.virtual_stages


def stage_layers(layers: int, layout: Layout) -> tuple[int, ...] | None:
    """Layers of each stage in model order, or None where the split is impossible."""
    stages = layout.stages
    if layout.split == "even":
        return (layers // stages,) * stages if layers % stages == 0 else None
    if layout.split == "weighted":
        return weighted_layers(layers, stages)
    fits = len(layout.split) == stages and sum(layout.split) == layers and min(layout.split) >= 0
    return layout.split if fits else None


def weighted_layers(layers: int, stages: int) -> tuple[int, ...] | None:
    """Embedding and LM head count as a layer each: BLOOM's 70 layers on 12 stages are 72/12 = 6 units a stage.

    The remainder goes, one unit each, to the middle stages: the ends carry the embedding and the logits.
    """
    units = layers + 2
    if stages == 1:
        return (layers,)
    if units < stages:
        return None
    share, extra = divmod(units, stages)
    sizes = [share] * stages
    first = (stages - extra) // 2
    for stage in range(first, first + extra):
        sizes[stage] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    return tuple(sizes)
