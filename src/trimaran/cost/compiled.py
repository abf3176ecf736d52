"""Where a compiler joins the kernels of a layer, which changes its bytes, in memory and on the way there."""

from typing import Any

from trimaran.cost.columns import Columns
from trimaran.spec import Cluster, TrainerProfile


def is_compiled(c: Columns, cluster: Cluster, trainer: TrainerProfile) -> Any:
    """As in engine.kernels.compile."""
    return (trainer.compiles and cluster.device.is_gpu) & (c.tp == 1) & ((c.pp == 1) | (c.schedule != 3))
