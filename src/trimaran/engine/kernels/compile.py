"""What torch.compile compiles, and where. On a GPU each layer becomes a few fused kernels around its GEMMs; all layers
of a model share one compilation. On a CPU nothing is compiled: it takes long and gains little there."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.world import World
from trimaran.processes.compile_cache import VARIABLE, make_private
from trimaran.spec.own_engine import layers_compile


def use_private_cache() -> None:
    """PyTorch runs what it finds in its cache, which by default is a folder in /tmp that another user could have made.
    Ours is in the user's home, and nobody else may write it; where that cannot be, a new one for this run."""
    if VARIABLE in os.environ:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimaran" / "compiled"
        is_private = make_private(folder)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        is_private = False
    os.environ[VARIABLE] = str(folder) if is_private else tempfile.mkdtemp(prefix="trimaran-compiled-")


def can_compile(world: World) -> bool:
    layout = world.layout
    return world.device.type == "cuda" and bool(layers_compile(layout.tp, layout.pp, layout.schedule == "zero-bubble"))


def compile_layers(stage: Stage, **options: Any) -> None:
    """In place, and only the computation: hooks around a module, such as FSDP2's, stay outside."""
    use_private_cache()
    for block in stage.layers.values():
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False, **options)
