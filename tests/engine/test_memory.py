"""Exact memory: fake tensors against real ones, few micro batches against all, and the cost model against both."""

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tests.engine.commands import ONE_THREAD
from tests.engine.jobs import BLOOM, GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.trainers import world_of
from trimaran.cost.columns import columns_of
from trimaran.cost.engine_memory import LIBRARY_BYTES
from trimaran.cost.memory import stage_memory
from trimaran.engine.memory.rank_memory import STEPS, TrackedTrainer, enough_micro_batches, rank_memory
from trimaran.engine.memory.tracker import Tracker
from trimaran.engine.parallel.zero import build_weights
from trimaran.spec import Job, presets

REAL: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "gpt": (GPT, {"micro_batch": 4}, "bf16"),
    "llama recompute": (LLAMA, {"micro_batch": 4, "recompute": "full"}, "fp32"),
    "bloom tp2 dp2": (BLOOM, {"tp": 2, "dp": 2, "sequence_parallel": True}, "bf16"),
    "gpt pp2 dp2": (GPT, {"pp": 2, "dp": 2, "zero": 1}, "fp32"),
    "gpt pp2 zero-bubble": (GPT, {"pp": 2, "schedule": "zero-bubble"}, "bf16"),
    "gpt fp8": (GPT, {"micro_batch": 4}, "fp8"),
    "bloom fp8 tp2": (BLOOM, {"tp": 2, "micro_batch": 8, "sequence_parallel": True}, "fp8"),
}


@pytest.mark.parametrize("case", REAL)
def test_fake_tensors_need_the_memory_of_real_ones(pool: Pool, case: str) -> None:
    model, layout, precision = REAL[case]
    wide = model | {"hidden": 128, "seq_len": 64}  # so that single scalars do not matter
    job = job_of(wide, layout, precision=precision, batch={"size": 8})
    for rank, (peak, parts) in enumerate(pool.run(job.layout.devices, real_peak, job)):
        fake = rank_memory(job, rank)
        # A send in flight holds its tensor, and a zero-bubble schedule waits for none of them.
        off = 0.02 if job.layout.schedule == "zero-bubble" else 0.01
        assert fake.peak == pytest.approx(peak, rel=off), f"rank {rank}: {fake.parts} instead of {parts}"


def real_peak(rank: int, job: Job) -> tuple[int, dict[str, int]]:
    world, tracker = world_of(rank, job), Tracker()
    tracked = TrackedTrainer(job, world, build_weights(job, world), tracker)
    for _ in range(STEPS):
        tracked.step()
    return tracker.peak, tracker.peak_parts


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ({"micro_batch": 1}, 7),
        ({"dp": 2, "zero": 2, "micro_batch": 1}, 14),
        ({"pp": 4}, 9),
        ({"pp": 2, "schedule": "interleaved", "virtual_stages": 2}, 12),
        ({"pp": 2, "schedule": "zero-bubble"}, 12),
    ],
)
def test_the_micro_batches_left_out_do_not_change_the_peak(
    layout: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(GPT | {"hidden": 128}, layout, batch={"size": size})
    assert enough_micro_batches(job) < job.micro_batches
    ranks = (0, job.layout.devices - 1)
    few = [rank_memory(job, rank) for rank in ranks]
    monkeypatch.setattr("trimaran.engine.memory.rank_memory.enough_micro_batches", lambda job: job.micro_batches)
    for rank, some in zip(ranks, few, strict=True):
        whole = rank_memory(job, rank)
        # A scalar of each loss, and its rows of the batch divided by the tokens that count.
        assert some.peak == pytest.approx(whole.peak, abs=job.micro_batches * (16 + 4 * job.model.seq_len))


def test_nothing_is_allocated_for_a_model_of_181_billion_parameters() -> None:
    import resource

    job = case(SHAPES["bloom"] | {"layers": 72}, tp=8, pp=12, dp=4, zero=1, recompute="full", schedule="gpipe")
    job = job.replace(batch={"size": 4})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = rank_memory(job, rank=383).peak
    assert peak > 15 * 2**30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {"hidden": 4096, "heads": 32, "seq_len": 2048},
    "small": {"hidden": 1024, "heads": 16, "seq_len": 1024},
    "bloom": {"hidden": 14336, "heads": 112, "vocab": 250880, "position": "alibi", "embedding_norm": True},
    "llama": {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256, "seq_len": 4096}
    | {"position": "rotary", "mlp": "swiglu", "norm": "rmsnorm", "tied_embeddings": False},
}
FIRST, ENDS, ALL = ("first",), ("first", "last"), ("first", "middle", "last")
ADAMS = (
    "adam",
    "fused-adam",
    *(["adam-8bit"] if find_spec("torchao") else []),
)  # an optional dependency on GPU machines
FUSED = {"optimizer": "fused-adam"}
SELECTIVE_FP8 = {"recompute": "selective", "precision": "fp8"}
# A shape, its layers, the stages compared, the layout and the rest of the job.
MODELLED: dict[str, tuple[str, int, tuple[str, ...], dict[str, Any]]] = {
    "gpt": ("gpt", 3, FIRST, {"micro_batch": 4}),
    "gpt one micro batch": ("gpt", 6, FIRST, {"micro_batch": 8, "micro_batches": 1}),
    "gpt fp32": ("gpt", 3, FIRST, {"micro_batch": 2, "precision": "fp32"}),
    "gpt full": ("gpt", 6, FIRST, {"micro_batch": 16, "recompute": "full", **FUSED}),
    "gpt update": ("small", 8, FIRST, {"recompute": "full"}),
    "gpt fp8": ("gpt", 6, FIRST, {"micro_batch": 8, "micro_batches": 1, "precision": "fp8"}),
    "gpt fp8 full": ("gpt", 6, FIRST, {"micro_batch": 16, "recompute": "full", "precision": "fp8", **FUSED}),
    "llama fp8 tp4": ("llama", 4, FIRST, {"tp": 4, "micro_batch": 4, "sequence_parallel": True, **SELECTIVE_FP8}),
    "gpt tp4": ("gpt", 4, FIRST, {"tp": 4, "micro_batch": 4}),
    "gpt tp8 sequence": ("gpt", 4, FIRST, {"tp": 8, "micro_batch": 8, "sequence_parallel": True, "precision": "fp32"}),
    "gpt zero1": ("gpt", 3, FIRST, {"dp": 8, "zero": 1, "micro_batch": 2}),
    "gpt zero2": ("gpt", 3, FIRST, {"dp": 8, "zero": 2, "micro_batch": 2}),
    "gpt zero3 full": ("gpt", 4, FIRST, {"dp": 16, "zero": 3, "micro_batch": 2, "recompute": "full"}),
    "gpt zero3 fp32": ("gpt", 3, FIRST, {"dp": 4, "zero": 3, "micro_batch": 2, "precision": "fp32"}),
    "gpt pp4": ("gpt", 8, ALL, {"pp": 4, "micro_batch": 4}),
    "gpt pp4 gpipe": ("gpt", 4, ENDS, {"pp": 4, "micro_batch": 2, "schedule": "gpipe", "micro_batches": 6}),
    "gpt pp4 interleaved": ("gpt", 8, ALL, {"pp": 4, "schedule": "interleaved", "virtual_stages": 2, "micro_batch": 2}),
    "gpt pp4 zero-bubble": ("gpt", 4, ALL, {"pp": 4, "schedule": "zero-bubble", "micro_batch": 2}),
    "gpt pp4 zero3": ("gpt", 8, ENDS, {"pp": 4, "dp": 4, "zero": 3, "micro_batch": 2}),
    "llama selective": ("llama", 2, FIRST, {"micro_batch": 2, "recompute": "selective", **FUSED}),
    "llama zero3": ("llama", 3, FIRST, {"dp": 8, "zero": 3}),
    "llama tp4 pp4": ("llama", 8, ENDS, {"pp": 4, "tp": 4, "dp": 2, "zero": 1, "sequence_parallel": True}),
    "bloom tp8 pp12": (
        "bloom",
        70,
        FIRST,
        {"pp": 12, "tp": 8, "dp": 4, "zero": 1, "recompute": "full", "split": "weighted", "micro_batches": 12},
    ),
}
if "adam-8bit" in ADAMS:
    MODELLED["gpt zero1 8-bit"] = ("gpt", 3, FIRST, {"dp": 2, "zero": 1, "micro_batch": 4, "optimizer": "adam-8bit"})


def case(
    model: dict[str, Any], micro_batches: int = 0, precision: str = "bf16", optimizer: str = "adam", **layout: Any
) -> Job:
    devices = layout.get("dp", 1) * layout.get("tp", 1) * layout.get("pp", 1)
    count = micro_batches or max(3, 2 * layout.get("pp", 1))
    values = {
        "model": model,
        "cluster": presets.cluster("hgx-h200").replace(nodes=1, devices_per_node=devices).model_dump(),
        "trainer": presets.trainer("trimaran").replace(compiles=False).model_dump(),  # as on fake tensors
        "layout": layout,
        "batch": {"size": count * layout.get("dp", 1) * layout.get("micro_batch", 1)},
        "precision": precision,
        "optimizer": optimizer,
    }
    return Job.of(values, "The test's job")


@pytest.mark.parametrize("name", MODELLED)
def test_the_cost_model_predicts_the_exact_memory_of_our_engine(name: str) -> None:
    """Within 5 %, as docs/cost-model.md promises."""
    shape, layers, stages, rest = MODELLED[name]
    job = case(SHAPES[shape] | {"layers": layers}, **rest)
    for stage in stages:
        place = {"first": 0, "middle": 1, "last": job.layout.pp - 1}[stage]
        exact = rank_memory(job, place * job.layout.dp * job.layout.tp)
        predicted = stage_memory(columns_of([job]), job.cluster, job.trainer, stage)
        parts = exact.parts
        assert total(predicted) == pytest.approx(exact.peak, rel=0.05), (stage, parts, predicted)
        near = {"rel": 0.05, "abs": 0.02 * exact.peak}  # a small part may be off by more than 5 % of itself
        assert value(predicted.optimizer) == pytest.approx(parts["optimizer"] + parts["master"], **near)
        if predicted.activations.any() and job.layout.zero < 3 and job.layout.schedule != "gpipe":
            assert value(predicted.activations) == pytest.approx(parts["activations"], **near), stage
        if job.layout.zero < 3:
            assert value(predicted.weights) == pytest.approx(parts["weights"], **near), stage


@pytest.mark.parametrize("micro_batch", [2, 16], ids=["at the update", "at the first layer"])
@pytest.mark.parametrize("optimizer", ADAMS)
@pytest.mark.parametrize("shape", ["gpt", "llama"])
def test_with_one_micro_batch_every_adam_is_predicted_within_1_percent(
    shape: str, optimizer: str, micro_batch: int
) -> None:
    """Temporaries of the update, and gradients that do not exist yet when the first layer's backward pass runs; with
    tied and untied embeddings."""
    model = SHAPES[shape] | {"layers": 6}
    job = case(model, micro_batches=1, micro_batch=micro_batch, recompute="full", optimizer=optimizer)
    predicted = stage_memory(columns_of([job]), job.cluster, job.trainer, "first")
    assert total(predicted) - LIBRARY_BYTES == pytest.approx(rank_memory(job, 0).peak, rel=0.01)


@pytest.mark.skipif("adam-8bit" not in ADAMS, reason="needs torchao")
def test_the_temporaries_of_uncompiled_8_bit_adam_are_predicted() -> None:
    """On a CPU torchao's step is not compiled, and packs 8-bit moments by way of int64."""
    wide = GPT | {"hidden": 256, "vocab": 8192}
    job = job_of(wide, {"micro_batch": 1, "recompute": "full"}, optimizer="adam-8bit", batch={"size": 2})
    predicted = stage_memory(columns_of([job]), job.cluster, job.trainer, "first")
    assert total(predicted) == pytest.approx(rank_memory(job, 0).peak, rel=0.01)


MEASURED_FIRST = """
import json, sys
from tests.engine.jobs import GPT, job_of
from tests.engine.trainers import losses_of, trainer_of
from trimaran.engine.memory.rank_memory import rank_memory
job = job_of(GPT | {"hidden": 64}, {"micro_batch": 2}, optimizer="adam-8bit")
if "measured" in sys.argv:
    rank_memory(job, 0)
print(json.dumps(losses_of(trainer_of(0, job), range(4))))
"""


@pytest.mark.skipif("adam-8bit" not in ADAMS, reason="needs torchao")
def test_measuring_memory_does_not_change_a_later_training() -> None:
    """torchao caches a quantization table, which fake tensors would leave without values."""
    command = [sys.executable, "-c", MEASURED_FIRST]
    runs = [
        subprocess.run([*command, *more], capture_output=True, text=True, env=ONE_THREAD) for more in ([], ["measured"])
    ]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_with_a_large_micro_batch_no_activation_is_missed_or_counted_twice(recompute: str, precision: str) -> None:
    """Weights are negligible beside these activations: one of a layer's smallest, counted once too often with full
    recompute, would be a thirtieth of the total."""
    large = {"micro_batch": 512, "micro_batches": 1, "recompute": recompute}
    job = case(SHAPES["small"] | {"layers": 6, "vocab": 512}, precision=precision, **large, **FUSED)
    predicted = stage_memory(columns_of([job]), job.cluster, job.trainer, "first")
    assert total(predicted) == pytest.approx(rank_memory(job, 0).peak, rel=0.006)


def total(predicted: Any) -> float:
    return value(predicted.total) - value(predicted.context) - value(predicted.slack)


def value(column: Any) -> float:
    return float(np.ravel(column)[0])
