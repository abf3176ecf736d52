"""Seconds of a GEMM: FLOPs over the peak, less what its shape costs."""

from typing import Any

import numpy as np

from trimaran.cost.constants import Constants
from trimaran.spec import Device

TILE_ROWS, TILE_COLUMNS = 128, 256  # the large tiles of cuBLAS on V100 to H200


def gemm_seconds(device: Device, peak_flops: float, k: Constants, rows: Any, columns: Any, inner: Any) -> Any:
    """Of rows x inner by inner x columns. Small sides, unfinished waves and misaligned widths lose efficiency."""
    efficiency = k.gemm_efficiency * wave_efficiency(device, rows, columns) ** k.wave_exponent
    small = (1 + k.gemm_half_tokens / rows) * (1 + k.gemm_half_width / columns) * (1 + k.gemm_half_width / inner)
    aligned = (columns % 64 == 0) & (inner % 64 == 0) & (rows % 64 == 0)
    slowdown = np.where(aligned, 1.0, k.misaligned_slowdown)
    return 2 * rows * columns * inner * small * slowdown / (peak_flops * efficiency) + k.kernel_us * 1e-6


def wave_efficiency(device: Device, rows: Any, columns: Any) -> Any:
    """Tiles are dealt to the units in waves; the last wave leaves some idle. CPU cores deal finer, so have no waves."""
    if not device.is_gpu:
        return 1.0
    tiles = np.ceil(rows / TILE_ROWS) * np.ceil(columns / TILE_COLUMNS)
    return tiles / (np.ceil(tiles / device.units) * device.units)
