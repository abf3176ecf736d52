"""Seconds of a matrix product, as a linear layer does it."""

import torch
import torch.nn.functional as F

from trimaran.probe.measured import Product
from trimaran.probe.shapes import Shape
from trimaran.probe.timing import Stopwatch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def product(watch: Stopwatch, shape: Shape) -> Product:
    """Random numbers, not zeros: a GPU that multiplies zeros draws less power and runs faster."""
    device, dtype = watch.world.device, DTYPES[shape.precision]
    inputs = torch.randn(shape.rows, shape.inner, device=device).to(dtype)
    weights = torch.randn(shape.columns, shape.inner, device=device).to(dtype)
    with torch.no_grad():
        seconds = watch.seconds(lambda: F.linear(inputs, weights))
    return Product(
        what=shape.what,
        precision=shape.precision,
        rows=shape.rows,
        columns=shape.columns,
        inner=shape.inner,
        seconds=seconds,
    )
