"""What torch.compile compiles, and where. On a GPU each layer becomes a few fused kernels around its GEMMs; all layers
of a model share one compilation. On a CPU nothing is compiled: it takes long and gains little there."""

from typing import Any

import torch

from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.world import World
from trimaran.spec.own_engine import layers_compile


def can_compile(world: World) -> bool:
    layout = world.layout
    return world.device.type == "cuda" and bool(layers_compile(layout.tp, layout.pp, layout.schedule == "zero-bubble"))


def compile_layers(stage: Stage, **options: Any) -> None:
    """In place, and only the computation: hooks around a module, such as FSDP2's, stay outside."""
    for block in stage.layers.values():
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False, **options)
