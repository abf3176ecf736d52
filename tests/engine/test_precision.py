"""bf16 and fp16: fp32 originals, fp32 gradients, the loss scale; and the three kinds of Adam under every ZeRO stage."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.engine.jobs import GPT, LLAMA, job_of
from tests.engine.pool import Pool
from trimaran.data.source import source_of
from trimaran.engine.loop.batches import batch
from trimaran.engine.optimizer.adam import is_decayed
from trimaran.engine.optimizer.loss_scale import LossScaler
from trimaran.engine.parallel.pipeline import SUPPORTS_ZERO_BUBBLE
from trimaran.engine.parallel.world import World, build_world
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job, LossScale, Recipe

STEPS = 6
Told = tuple[float, float, float, bool]  # loss, gradient norm, loss scale, skipped

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tp": 2, "micro_batch": 4, "sequence_parallel": True},
    "pp2": {"pp": 2, "micro_batch": 2},
    "pp2 zero-bubble": {"pp": 2, "micro_batch": 2, "schedule": "zero-bubble"},
    **{f"dp2 zero{zero}": {"dp": 2, "zero": zero, "micro_batch": 2} for zero in range(4)},
    "tp2 pp2 dp2": {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2},
}
if not SUPPORTS_ZERO_BUBBLE:  # with this PyTorch
    del LAYOUTS["pp2 zero-bubble"]
# Relative, of losses: rounding to 8 bits (bf16) or 11 (fp16) differs with the order of sums.
TOLERANCE = {"fp32": 1e-5, "bf16": 3e-3, "fp16": 1e-3}


def trained(rank: int, jobs: list[Job]) -> list[list[Told]]:
    device = torch.device("cpu")
    found = []
    for job in jobs:
        alone = job.layout.devices == 1
        world = World(job.layout, device) if alone else build_world(job.layout, job.model.tied_embeddings, device, rank)
        trainer, source = Trainer(job, world), source_of(job)
        told = []
        for number in range(STEPS):
            parts = batch(job, source, number * job.batch.size, job.batch.size, world.dp_rank, device)
            step = trainer.step(parts)
            told.append((float(step.loss), float(step.grad_norm), step.loss_scale, step.skipped))
        found.append(told)
    return found


SMALL_SCALE = {"learning_rate": 1e-3, "loss_scale": {"initial": 1024.0}}
KINDS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "recipe": SMALL_SCALE},
    "fp16 overflowing": {
        "precision": "fp16",
        "recipe": {"learning_rate": 1e-3, "loss_scale": {"initial": 2.0**34, "hysteresis": 1}},
    },
    "fused-adam": {"optimizer": "fused-adam"},
}
if find_spec("torchao"):  # not on every GPU machine; the test machine has it
    KINDS["adam-8bit"] = {"optimizer": "adam-8bit"}


@pytest.fixture(scope="session")
def told(pool: Pool) -> Any:
    @cache
    def of_layout(name: str) -> list[list[list[Told]]]:
        layout = LAYOUTS.get(name, {"micro_batch": 2})
        jobs = [job_of(GPT | {"hidden": 64}, layout, **kind) for kind in KINDS.values()]
        return pool.run(jobs[0].layout.devices, trained, jobs)

    return of_layout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_agree_between_layouts_within_the_precision(layout: str, kind: str, told: Any) -> None:
    number = list(KINDS).index(kind)
    (alone,) = told("one process")
    tolerance = 3e-3 if kind == "adam-8bit" else TOLERANCE[KINDS[kind].get("precision", "fp32")]
    for of_rank in told(layout):
        for found, wanted in zip(of_rank[number], alone[number], strict=True):
            assert found[0] == pytest.approx(wanted[0], rel=tolerance)
            assert found[2:] == wanted[2:]  # the scale, and what was skipped


def test_the_losses_are_those_of_fp32_but_for_rounding(told: Any, pool: Pool) -> None:
    exact = pool.run(1, trained, [job_of(GPT | {"hidden": 64}, {"micro_batch": 2})])[0][0]
    (alone,) = told("one process")
    for kind, losses in zip(KINDS, alone, strict=True):
        if kind != "fp16 overflowing":
            assert [loss for loss, *_ in losses] == pytest.approx([loss for loss, *_ in exact], rel=5e-3), kind


def test_an_overflow_is_skipped_and_halves_the_scale(told: Any) -> None:
    """2**34 times a gradient is above fp16's largest number: steps are skipped until the scale is small enough."""
    (alone,) = told("one process")
    scales = [scale for _, _, scale, _ in alone[2]]
    skipped = [skip for *_, skip in alone[2]]
    assert skipped[0]
    assert scales[1] == scales[0] / 2
    assert alone[2][0][0] == pytest.approx(alone[2][1][0], rel=0.05)  # nothing moved but the data


def test_the_scale_follows_the_rule_of_pytorchs_own_scaler() -> None:
    """Which has no hysteresis: ours with one."""
    rule = LossScale(initial=1024.0, window=3, hysteresis=1)
    ours, theirs = LossScaler(rule), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for finite in (True, True, True, False, True, False, False, True, True, True, True):
        theirs.scale(weight.sum() * (1.0 if finite else torch.inf)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.update(finite)
        assert ours.scale == theirs.get_scale()


def test_hysteresis_forgives_overflows_until_the_next_doubling() -> None:
    scaler = LossScaler(LossScale(initial=8.0, window=2, hysteresis=2, minimum=4.0))
    scales = []
    for finite in (False, False, False, True, True, False, False):
        scaler.update(finite)
        scales.append(scaler.scale)
    assert scales == [8.0, 4.0, 4.0, 4.0, 8.0, 8.0, 4.0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("layers.3.attention_norm.weight", "norms"),
        ("norm.bias", "norms"),
        ("layers.0.mlp.up.bias", "biases"),
        ("embedding.word", "embeddings"),
        ("embedding.position", "embeddings"),
        ("layers.0.mlp.up.weight", None),
        ("head.weight", None),
    ],
)
def test_what_the_recipe_leaves_out_does_not_decay(name: str, kind: str | None) -> None:
    kinds = ("norms", "biases", "embeddings")
    assert is_decayed(name, Recipe(undecayed=()))
    assert is_decayed(name, Recipe(undecayed=tuple(other for other in kinds if other != kind)))
    assert is_decayed(name, Recipe(undecayed=kinds)) == (kind is None)


def test_a_whole_step_of_ours_is_a_step_of_torchs_adamw(pool: Pool) -> None:
    """One step with decay groups, recomputed by hand from the gradient: w - lr (decay w + sign-like first step)."""
    job = job_of(LLAMA, {"micro_batch": 8}, recipe={"learning_rate": 0.01, "weight_decay": 0.5, "clip": None})
    trainer = Trainer(job, World(job.layout, torch.device("cpu")))
    before = [master.value.detach().clone() for master in trainer.weights.masters]
    trainer.step(batch(job, source_of(job), 0, 8, 0, torch.device("cpu")))
    for master, old in zip(trainer.weights.masters, before, strict=True):
        gradient, decay = master.gradient, 0.5 if master.value.dim() == 2 else 0.0
        first = gradient / (gradient.abs() + job.recipe.eps)  # moments corrected for one step
        torch.testing.assert_close(master.value.detach(), old * (1 - 0.01 * decay) - 0.01 * first, rtol=1e-4, atol=1e-6)
