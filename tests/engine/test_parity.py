"""The same Job gives the same losses on every layout: the steps of 2, 4 or 8 processes against those of one.

LAYOUTS x MODELS is the matrix: every layout runs each family, tied and untied embeddings, causal and prefix attention,
with and without recompute.
"""

from functools import cache
from typing import Any

import pytest

from tests.engine.jobs import BLOOM, GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.trainers import CPU, trainer_of
from trimaran.data.source import source_of
from trimaran.engine.loop.batches import batch
from trimaran.engine.parallel.pipeline import SUPPORTS_ZERO_BUBBLE
from trimaran.spec import Job

STEPS = 4  # the first shows the forward pass, the second the update, the others what the moments keep
TOLERANCE = 1e-5  # relative, of losses and gradient norms in fp32

TIED, UNTIED = {"tied_embeddings": True}, {"tied_embeddings": False}
PREFIX = {"objective": "prefix"}
PER_DOCUMENT = {"documents": "apart", "prefix": "document", "loss_on": "all"}

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # name: (model, data, recompute). An orthogonal array: any two of the choices occur in all four combinations.
    "gpt tied causal": (GPT | TIED, {}, "none"),
    "gpt untied prefix": (GPT | UNTIED | PREFIX, {}, "none"),
    "bloom tied prefix recompute": (BLOOM | TIED | PREFIX, PER_DOCUMENT, "full"),
    "llama untied causal recompute": (LLAMA | UNTIED, {"documents": "apart"}, "full"),
}

BATCHES: dict[str, dict[str, Any]] = {
    "eight": {"size": 8},
    "six": {"size": 6},
    "ramp-up": {"size": 8, "ramp": {"start": 4, "increment": 2, "samples": 8}},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    # A layout; with it, where needed, another number of layers or batch size (which its reference then has too).
    "micro batches": {"micro_batch": 2},
    "selective": {"micro_batch": 8, "recompute": "selective"},
    "tp2": {"tp": 2, "micro_batch": 4},
    "tp2 sequence": {"tp": 2, "micro_batch": 4, "sequence_parallel": True},
    "tp2 selective": {"tp": 2, "micro_batch": 8, "recompute": "selective"},
    "tp4": {"tp": 4, "micro_batch": 8},
    "tp4 sequence": {"tp": 4, "micro_batch": 8, "sequence_parallel": True},
    "pp2 gpipe": {"pp": 2, "micro_batch": 2, "schedule": "gpipe"},
    "pp2 1f1b": {"pp": 2, "micro_batch": 2},
    "pp2 interleaved": {"pp": 2, "micro_batch": 2, "schedule": "interleaved", "virtual_stages": 2},
    "pp2 zero-bubble": {"pp": 2, "micro_batch": 2, "schedule": "zero-bubble"},
    "pp2 split by hand": {"pp": 2, "micro_batch": 4, "split": (3, 1)},
    "pp2 interleaved ramp-up": {"pp": 2, "schedule": "interleaved", "virtual_stages": 2, "batch": "ramp-up"},
    "pp4 gpipe": {"pp": 4, "micro_batch": 2, "schedule": "gpipe"},
    "pp4 1f1b": {"pp": 4, "micro_batch": 2},
    "pp4 1f1b ramp-up": {"pp": 4, "batch": "ramp-up"},
    "pp4 interleaved": {"pp": 4, "micro_batch": 2, "schedule": "interleaved", "virtual_stages": 2, "layers": 8},
    "pp4 zero-bubble": {"pp": 4, "micro_batch": 2, "schedule": "zero-bubble"},
    "pp4 only embedding and head at the ends": {"pp": 4, "micro_batch": 2, "split": (0, 3, 1, 0)},
    "pp4 split by weight": {"pp": 4, "micro_batch": 2, "split": "weighted"},
    **{f"dp2 zero{z}": {"dp": 2, "zero": z, "micro_batch": 2} for z in range(4)},
    **{f"dp4 zero{z}": {"dp": 4, "zero": z} for z in range(4)},
    "dp3 zero1": {"dp": 3, "zero": 1, "micro_batch": 2, "batch": "six"},
    "dp2 zero3 selective": {"dp": 2, "zero": 3, "micro_batch": 4, "recompute": "selective"},
    "tp2 pp2": {"tp": 2, "pp": 2, "micro_batch": 4, "sequence_parallel": True},
    "tp2 pp2 zero-bubble": {"tp": 2, "pp": 2, "micro_batch": 4, "schedule": "zero-bubble", "sequence_parallel": True},
    **{f"tp2 dp2 zero{z}": {"tp": 2, "dp": 2, "zero": z, "micro_batch": 4} for z in (0, 3)},
    **{f"pp2 dp2 zero{z}": {"pp": 2, "dp": 2, "zero": z, "micro_batch": 2} for z in range(4)},
    "pp2 dp2 interleaved": {
        "pp": 2,
        "dp": 2,
        "zero": 3,
        "micro_batch": 2,
        "schedule": "interleaved",
        "virtual_stages": 2,
    },
    "pp2 dp2 zero-bubble": {"pp": 2, "dp": 2, "zero": 1, "micro_batch": 2, "schedule": "zero-bubble"},
    **{
        f"tp2 pp2 dp2 zero{z}": {"tp": 2, "pp": 2, "dp": 2, "zero": z, "micro_batch": 2, "sequence_parallel": z != 3}
        for z in (0, 1, 3)
    },
}

if not SUPPORTS_ZERO_BUBBLE:
    LAYOUTS = {name: row for name, row in LAYOUTS.items() if row.get("schedule") != "zero-bubble"}

Losses = list[tuple[float, float]]


def jobs(layout: str) -> list[Job]:
    """One for each model, under this layout."""
    return [_job(layout, model, dict(LAYOUTS[layout])) for model in MODELS]


def _job(layout: str, model: str, cut: dict[str, Any]) -> Job:
    shape, data, recompute = MODELS[model]
    layers, size = cut.pop("layers", shape["layers"]), BATCHES[cut.pop("batch", "eight")]
    if cut.get("schedule") != "zero-bubble":  # which is refused with recompute
        cut.setdefault("recompute", recompute)
    return job_of(shape | {"layers": layers}, cut, data=data, batch=size, name=f"{layout}, {model}")


def train_each(rank: int, jobs: list[Job]) -> list[Losses]:
    """Losses and gradient norms of each Job's steps, as this rank reports them."""
    return [train(rank, job) for job in jobs]


def train(rank: int, job: Job) -> Losses:
    trainer, source, consumed, losses = trainer_of(rank, job), source_of(job), 0, []
    for _ in range(STEPS):
        size = job.batch.size_after(consumed)
        step = trainer.step(batch(job, source, consumed, size, trainer.world.dp_rank, CPU))
        losses.append((float(step.loss), float(step.grad_norm)))
        consumed += size
    return losses


@pytest.fixture(scope="session")
def parallel(pool: Pool) -> Any:
    """By layout: each rank's losses of every model. The ranks of a layout train all models in one call."""

    @cache
    def of_layout(layout: str) -> list[list[Losses]]:
        every = jobs(layout)
        return pool.run(every[0].layout.devices, train_each, every)

    return of_layout


@pytest.fixture(scope="session")
def single_process(pool: Pool) -> Any:
    """By depth and batch: the losses of every model on one process, without recompute, sample by sample."""

    @cache
    def of_layout(layers: int, size: str) -> list[Losses]:
        every = [
            job_of(shape | {"layers": layers}, {}, data=data, batch=BATCHES[size]) for shape, data, _ in MODELS.values()
        ]
        return pool.run(1, train_each, every)[0]

    return of_layout


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_losses_and_gradient_norms_of_one_process(
    layout: str, model: str, parallel: Any, single_process: Any
) -> None:
    number, row = list(MODELS).index(model), LAYOUTS[layout]
    expected = single_process(row.get("layers", GPT["layers"]), row.get("batch", "eight"))[number]
    for of_rank in parallel(layout):
        for found, wanted in zip(of_rank[number], expected, strict=True):
            assert found == pytest.approx(wanted, rel=TOLERANCE)
