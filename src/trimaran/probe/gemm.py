"""Seconds of a matrix product, as a linear layer does it: a moment, and without a pause."""

import time

import torch
import torch.nn.functional as F

from trimaran.probe.measured import Product
from trimaran.probe.shapes import Shape
from trimaran.probe.timing import Stopwatch
from trimaran.spec.cluster import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIDE = 8192  # of a product that fills any device
WARM_SECONDS, LAST_SECONDS = 4.0, 1.0  # until a GPU's clock has settled below its power limit; then its rate counts


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


def sustained_tflops(watch: Stopwatch, precision: Precision) -> float:
    """Of large products without a pause: a GPU that draws all the power it may lowers its clock."""
    device, dtype = watch.world.device, DTYPES[precision]
    a, b = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2))
    with torch.no_grad():
        one = watch.seconds(lambda: F.linear(a, b))
        for seconds in (WARM_SECONDS, LAST_SECONDS):
            calls = int(watch.world.most(seconds / one))
            started = time.perf_counter()
            for _ in range(calls):
                F.linear(a, b)
            torch.cuda.synchronize(device)
            took = watch.world.mean(time.perf_counter() - started)
    return 2.0 * SIDE**3 * calls / took / 1e12
