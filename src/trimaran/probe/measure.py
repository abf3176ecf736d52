"""The order of a probe, and its budget: what every cluster file needs first, finer grids while there is time."""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import zip_longest

import torch

from trimaran.probe.attention import attention
from trimaran.probe.collectives import collective, message_sizes, teams
from trimaran.probe.gemm import product, sustained_tflops
from trimaran.probe.host import host
from trimaran.probe.launch_overhead import launches
from trimaran.probe.measured import Attention, Collective, Launches, Measured, Product, Traffic
from trimaran.probe.memory import GIB, context, traffic
from trimaran.probe.shapes import Shape, model_shapes, square_shapes, sweep_shapes
from trimaran.probe.timing import Stopwatch, stopwatch
from trimaran.probe.world import World
from trimaran.spec import Model
from trimaran.spec.cluster import Precision

Told = Callable[[str, float], object]  # what is being measured, and the share that is done
Result = Product | Attention | Traffic | Launches | Collective

BUDGET_SECONDS = 90.0  # after this only what a cluster file needs is measured


@dataclass(frozen=True)
class Asked:
    model: Model
    quick: bool
    command: str  # as it will stand in the cluster file


@dataclass(frozen=True)
class Step:
    label: str
    work: Callable[[], Result]
    flops: float = 0.0  # of a product or attention: too long a one is left out
    precision: Precision = "fp32"


def measure(world: World, asked: Asked, told: Told) -> Measured:
    """On every rank alike: whether something is left out is decided by numbers that all of them have."""
    started = time.perf_counter()
    watch = stopwatch(world, asked.quick)
    precision: Precision = "bf16" if _has_bf16(world) else "fp16" if world.device.type == "cuda" else "fp32"
    needed, finer = steps(watch, asked.model, precision, asked.quick)
    everything = [*needed, *finer]
    results: list[Result] = []
    left_out = 0
    for i, step in enumerate(everything):
        told(step.label, i / len(everything))
        late = i >= len(needed) and world.mean(time.perf_counter() - started) > BUDGET_SECONDS
        if late or step.flops > watch.longest_seconds * best_rate(results, step.precision):
            left_out += 1
        else:
            results.append(step.work())
    sustained = None
    if world.device.type == "cuda":
        told("products without a pause", 1.0)
        sustained = sustained_tflops(watch, precision)
    told("done", 1.0)
    return _measured(world, asked, precision, results, sustained, left_out, time.perf_counter() - started)


def steps(watch: Stopwatch, model: Model, precision: Precision, quick: bool) -> tuple[list[Step], list[Step]]:
    """What a cluster file needs, and what makes it finer."""
    cuda = watch.world.device.type == "cuda"
    groups = list(teams(watch.world))

    def products(few: bool) -> Iterator[Step]:
        for shape in [*model_shapes(model, precision, few), *sweep_shapes(cuda, precision, few)]:
            yield _product_step(watch, shape)

    def messages(few: bool) -> Iterator[Step]:
        for team in groups:
            for kind in team.kinds:
                for size in message_sizes(cuda, few):
                    label = f"{kind} of {team.size} ranks {team.where} a node, {size // 1024} KiB"
                    yield Step(label, lambda t=team, k=kind, s=size: collective(watch, t, k, s))  # type: ignore[misc]

    needed = [
        *(_product_step(watch, shape) for shape in square_shapes(cuda)),
        *products(few=True),
        Step("memory bandwidth", lambda: traffic(watch, model, precision)),
        Step("launch overhead", lambda: launches(watch)),
        *(_attention_step(watch, model, seq, precision) for seq in _sequences(model)),
        *messages(few=True),
    ]
    if quick:
        return needed, []
    labels = {step.label for step in needed}
    turns = zip_longest(messages(few=False), products(few=False))  # so that neither is left out for the other
    return needed, [step for turn in turns for step in turn if step and step.label not in labels]


def best_rate(results: list[Result], precision: Precision) -> float:
    """FLOP/s of the fastest product so far; anything may be tried before the first."""
    rates = [done.tflops * 1e12 for done in results if isinstance(done, Product) and done.precision == precision]
    return max(rates, default=float("inf"))


def _product_step(watch: Stopwatch, shape: Shape) -> Step:
    label = f"product {shape.what}, {shape.rows} x {shape.columns} x {shape.inner}, {shape.precision}"
    return Step(label, lambda: product(watch, shape), shape.flops, shape.precision)


def _attention_step(watch: Stopwatch, model: Model, seq: int, precision: Precision) -> Step:
    flops = 3.5 * 2.0 * model.heads * seq**2 * model.head_dim
    return Step(f"attention over {seq} tokens", lambda: attention(watch, model, seq, precision), flops, precision)


def _sequences(model: Model) -> list[int]:
    """Around the model's own; the first is short enough for any machine."""
    return sorted({min(128, model.seq_len), max(1, model.seq_len // 2), model.seq_len, 2 * model.seq_len})


def _has_bf16(world: World) -> bool:
    return world.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _measured(
    world: World,
    asked: Asked,
    precision: Precision,
    results: list[Result],
    sustained: float | None,
    left_out: int,
    took_seconds: float,
) -> Measured:
    cuda = world.device.type == "cuda"
    card = torch.cuda.get_device_properties(world.device) if cuda else None
    return Measured(
        command=asked.command,
        date=date.today().isoformat(),
        took_seconds=took_seconds,
        model=asked.model.name,
        ranks=world.size,
        nodes=len(world.nodes),
        device="cuda" if cuda else "cpu",
        device_name=card.name if card else f"cpu-{platform.machine()}",
        units=card.multi_processor_count if card else 1,
        device_memory_gib=card.total_memory / GIB if card else None,
        precision=precision,
        host=host(),
        products=tuple(done for done in results if isinstance(done, Product)),
        attention=tuple(done for done in results if isinstance(done, Attention)),
        traffic=next(done for done in results if isinstance(done, Traffic)),
        launches=next(done for done in results if isinstance(done, Launches)),
        collectives=tuple(done for done in results if isinstance(done, Collective)),
        context_gib=world.most(context(world.device)) if cuda else None,
        sustained_tflops=sustained,
        left_out=left_out,
    )
