"""bf16 and fp16: fp32 master weights and gradients, loss scaling; and the three Adams under every ZeRO stage."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.engine.jobs import GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.trainers import run_steps, trainer_of
from trimaran.engine.optimizer.adam import is_decayed
from trimaran.engine.optimizer.loss_scale import LossScaler
from trimaran.engine.parallel.pipeline import SUPPORTS_ZERO_BUBBLE
from trimaran.spec import Job, LossScale, Recipe

STEPS = 4
Reported = tuple[float, float, float, bool]  # loss, gradient norm, loss scale, skipped

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tp": 2, "micro_batch": 4, "sequence_parallel": True},
    "pp2": {"pp": 2, "micro_batch": 2},
    "pp2 zero-bubble": {"pp": 2, "micro_batch": 2, "schedule": "zero-bubble"},
    **{f"dp2 zero{zero}": {"dp": 2, "zero": zero, "micro_batch": 2} for zero in range(4)},
    "tp2 pp2 dp2": {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2},
}
if not SUPPORTS_ZERO_BUBBLE:
    del LAYOUTS["pp2 zero-bubble"]
# Relative, of losses: rounding to 8 (bf16) or 11 (fp16) significant bits differs with the order of sums.
TOLERANCE = {"fp32": 1e-5, "bf16": 3e-3, "fp16": 1e-3}


def train_each(rank: int, jobs: list[Job]) -> list[list[Reported]]:
    every = (run_steps(trainer_of(rank, job), range(STEPS)) for job in jobs)
    return [[(float(s.loss), float(s.grad_norm), s.loss_scale, s.skipped) for s in steps] for steps in every]


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
if find_spec("torchao"):  # an optional dependency on GPU machines
    KINDS["adam-8bit"] = {"optimizer": "adam-8bit"}


@pytest.fixture(scope="session")
def reported(pool: Pool) -> Any:
    @cache
    def of_layout(name: str) -> list[list[list[Reported]]]:
        layout = LAYOUTS.get(name, {"micro_batch": 2})
        jobs = [job_of(GPT | {"hidden": 64}, layout, **kind) for kind in KINDS.values()]
        return pool.run(jobs[0].layout.devices, train_each, jobs)

    return of_layout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_agree_between_layouts_within_the_precision(layout: str, kind: str, reported: Any) -> None:
    number = list(KINDS).index(kind)
    (single,) = reported("one process")
    tolerance = 3e-3 if kind == "adam-8bit" else TOLERANCE[KINDS[kind].get("precision", "fp32")]
    for of_rank in reported(layout):
        for found, wanted in zip(of_rank[number], single[number], strict=True):
            assert found[0] == pytest.approx(wanted[0], rel=tolerance)
            assert found[2:] == wanted[2:]  # the scale, and what was skipped


def test_the_losses_are_those_of_fp32_but_for_rounding(reported: Any, pool: Pool) -> None:
    exact = pool.run(1, train_each, [job_of(GPT | {"hidden": 64}, {"micro_batch": 2})])[0][0]
    (single,) = reported("one process")
    for kind, losses in zip(KINDS, single, strict=True):
        if kind != "fp16 overflowing":
            assert [loss for loss, *_ in losses] == pytest.approx([loss for loss, *_ in exact], rel=5e-3), kind


def test_an_overflow_is_skipped_and_halves_the_scale(reported: Any) -> None:
    """2**34 times a gradient overflows fp16: steps are skipped until the scale is small enough."""
    (single,) = reported("one process")
    scales = [scale for _, _, scale, _ in single[2]]
    skipped = [skip for *_, skip in single[2]]
    assert skipped[0]
    assert scales[1] == scales[0] / 2
    assert single[2][0][0] == pytest.approx(single[2][1][0], rel=0.05)  # only the data changed


def test_the_loss_scale_follows_pytorchs_grad_scaler() -> None:
    """Which has no hysteresis: ours with hysteresis 1."""
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


def test_hysteresis_tolerates_overflows_until_the_next_doubling() -> None:
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
def test_parameters_the_recipe_excludes_do_not_decay(name: str, kind: str | None) -> None:
    kinds = ("norms", "biases", "embeddings")
    assert is_decayed(name, Recipe(undecayed=()))
    assert is_decayed(name, Recipe(undecayed=tuple(other for other in kinds if other != kind)))
    assert is_decayed(name, Recipe(undecayed=kinds)) == (kind is None)


def test_a_step_is_a_step_of_adamw() -> None:
    """With decay groups, recomputed from the gradient by the definition: w - lr (decay w + sign-like first step)."""
    job = job_of(LLAMA, {"micro_batch": 8}, recipe={"learning_rate": 0.01, "weight_decay": 0.5, "clip": None})
    trainer = trainer_of(0, job)
    before = [master.value.detach().clone() for master in trainer.weights.masters]
    run_steps(trainer, [0])
    for master, old in zip(trainer.weights.masters, before, strict=True):
        gradient, decay = master.gradient, 0.5 if master.value.dim() == 2 else 0.0
        first = gradient / (gradient.abs() + job.recipe.eps)  # moments corrected for one step
        torch.testing.assert_close(master.value.detach(), old * (1 - 0.01 * decay) - 0.01 * first, rtol=1e-4, atol=1e-6)
