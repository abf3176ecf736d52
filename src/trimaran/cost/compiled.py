"""Where a compiler joins the kernels of a layer, which changes its bytes, in memory and on the way there."""

from typing import Any

from trimaran.cost.columns import SCHEDULE, Columns
from trimaran.spec import Cluster, TrainerProfile
from trimaran.spec.own_engine import layers_compile


def is_compiled(c: Columns, cluster: Cluster, trainer: TrainerProfile) -> Any:
    zero_bubble = c.schedule == SCHEDULE["zero-bubble"]
    return (trainer.compiles and cluster.device.is_gpu) & layers_compile(c.tp, c.pp, zero_bubble)
