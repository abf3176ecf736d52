"""How many layers the first, a middle and the last pipeline stage get, as columns."""

from typing import Any

import numpy as np

from trimaran.cost.columns import Columns


def stage_layer_counts(c: Columns) -> tuple[Any, Any, Any]:
    """Layers of the first, a middle and the last stage. Weighted: the ends give one layer up for embedding and head."""
    fewer = np.logical_and(c.weighted, c.pp > 1) * 1
    units = np.ceil((c.layers + 2 * fewer) / c.pp)  # an uneven split is as slow and as full as its largest stage
    return units - fewer, units, units - fewer
