"""The order of a probe, and its time budget: first what every cluster file needs, then finer grids."""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import zip_longest

import torch

from trimaran.probe.collectives import concurrent_groups, message_sizes, time_collective
from trimaran.probe.detect import host_facts
from trimaran.probe.device_benchmarks import (
    GIB,
    context_gib,
    measure_launches,
    measure_traffic,
    sustained_tflops,
    time_attention,
    time_gemm,
)
from trimaran.probe.gemm_shapes import model_shapes, square_shapes, sweep_shapes
from trimaran.probe.result import (
    AttentionTiming,
    CollectiveTiming,
    GemmShape,
    GemmTiming,
    LaunchOverhead,
    MemoryTraffic,
    ProbeResult,
)
from trimaran.probe.timing import Stopwatch, stopwatch
from trimaran.probe.world import ProbeWorld
from trimaran.spec import Model
from trimaran.spec.cluster import Precision

OnProgress = Callable[[str, float], object]  # what is being measured, and the share that is done
Timing = GemmTiming | AttentionTiming | MemoryTraffic | LaunchOverhead | CollectiveTiming

BUDGET_SECONDS = 90.0  # after this only what a cluster file needs is measured


@dataclass(frozen=True)
class ProbeOptions:
    model: Model
    quick: bool
    command: str  # as written into the cluster file


@dataclass(frozen=True)
class Measurement:
    label: str
    run: Callable[[], Timing]
    flops: float = 0.0  # of a GEMM or attention: it is left out where it would take too long
    precision: Precision = "fp32"


def measure(world: ProbeWorld, options: ProbeOptions, on_progress: OnProgress) -> ProbeResult:
    """The same on every rank: what is left out is decided by values that all of them have."""
    started = time.perf_counter()
    watch = stopwatch(world, options.quick)
    precision: Precision = "fp32"
    card = None
    if world.device.type == "cuda":
        precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        card = torch.cuda.get_device_properties(world.device)
    needed, finer = measurements(watch, options.model, precision, options.quick)
    everything = [*needed, *finer]
    results: list[Timing] = []
    left_out = 0
    for i, measurement in enumerate(everything):
        on_progress(measurement.label, i / len(everything))
        late = i >= len(needed) and world.mean(time.perf_counter() - started) > BUDGET_SECONDS
        if late or measurement.flops > watch.longest_seconds * best_rate(results, measurement.precision):
            left_out += 1
        else:
            results.append(measurement.run())
    sustained = None
    if card:
        on_progress("GEMMs back to back", 1.0)
        sustained = sustained_tflops(watch, precision)
    on_progress("done", 1.0)
    gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return ProbeResult(
        command=options.command,
        date=date.today().isoformat(),
        took_seconds=time.perf_counter() - started,
        model=options.model.name,
        ranks=world.size,
        nodes=len(world.nodes),
        device="cuda" if card else "cpu",
        device_name=card.name if card else f"cpu-{platform.machine()}",
        units=card.multi_processor_count if card else 1,
        device_memory_gib=card.total_memory / GIB if card else None,
        precision=precision,
        host=host_facts(gpus, str(torch.__version__)),
        products=tuple(done for done in results if isinstance(done, GemmTiming)),
        attention=tuple(done for done in results if isinstance(done, AttentionTiming)),
        traffic=next(done for done in results if isinstance(done, MemoryTraffic)),
        launches=next(done for done in results if isinstance(done, LaunchOverhead)),
        collectives=tuple(done for done in results if isinstance(done, CollectiveTiming)),
        context_gib=world.max(context_gib(world.device)) if card else None,
        sustained_tflops=sustained,
        left_out=left_out,
    )


def measurements(
    watch: Stopwatch, model: Model, precision: Precision, quick: bool
) -> tuple[list[Measurement], list[Measurement]]:
    """What a cluster file needs, and what makes it finer."""
    cuda = watch.world.device.type == "cuda"
    all_groups = list(concurrent_groups(watch.world))

    def gemms(few: bool) -> Iterator[Measurement]:
        for shape in [*model_shapes(model, precision, few), *sweep_shapes(cuda, precision, few)]:
            yield _gemm(watch, shape)

    def collectives(few: bool) -> Iterator[Measurement]:
        for groups in all_groups:
            for kind in groups.kinds:
                for size in message_sizes(cuda, few):
                    label = f"{kind} of {groups.size} ranks {groups.where} a node, {size // 1024} KiB"
                    yield Measurement(label, partial(time_collective, watch, groups, kind, size))

    needed = [
        *(_gemm(watch, shape) for shape in square_shapes(cuda)),
        *gemms(few=True),
        Measurement("memory bandwidth", lambda: measure_traffic(watch, model, precision)),
        Measurement("launch overhead", lambda: measure_launches(watch)),
        *(_attention(watch, model, seq, precision) for seq in _sequences(model)),
        *collectives(few=True),
    ]
    if quick:
        return needed, []
    labels = {measurement.label for measurement in needed}
    turns = zip_longest(collectives(few=False), gemms(few=False))  # so that neither uses up the time of the other
    return needed, [each for turn in turns for each in turn if each and each.label not in labels]


def best_rate(results: list[Timing], precision: Precision) -> float:
    """FLOP/s of the fastest GEMM so far; infinite before the first."""
    rates = [done.tflops * 1e12 for done in results if isinstance(done, GemmTiming) and done.precision == precision]
    return max(rates, default=float("inf"))


def _gemm(watch: Stopwatch, shape: GemmShape) -> Measurement:
    label = f"GEMM {shape.what}, {shape.rows} x {shape.columns} x {shape.inner}, {shape.precision}"
    return Measurement(label, lambda: time_gemm(watch, shape), shape.flops, shape.precision)


def _attention(watch: Stopwatch, model: Model, seq: int, precision: Precision) -> Measurement:
    flops = 3.5 * 2.0 * model.heads * seq**2 * model.head_dim
    run = partial(time_attention, watch, model, seq, precision)
    return Measurement(f"attention over {seq} tokens", run, flops, precision)


def _sequences(model: Model) -> list[int]:
    """Around the model's sequence length; the first is short enough for any machine."""
    return sorted({min(128, model.seq_len), max(1, model.seq_len // 2), model.seq_len, 2 * model.seq_len})
