"""A Job's own layout among all others: its place, its distance from the best, and the reason."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.cost.columns import columns_of
from trimaran.cost.predict import predict
from trimaran.planner.compare import Comparison
from trimaran.planner.plan import Plan, make_plan, ranked_layouts
from trimaran.planner.question import Question, make_batch, with_nodes
from trimaran.planner.ranking import rank_of, search
from trimaran.spec import Job, Layout, Mistake, Model, presets
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings

BLOOM = Path(__file__).parents[2] / "examples" / "jobs" / "bloom-176b.yaml"
SMALL = Question(
    model=Model.of({"name": "small", "layers": 12, "hidden": 1536, "heads": 12}),
    cluster=with_nodes(presets.cluster("jean-zay-a100-80gb"), 1),
    trainer=presets.trainer("megatron-lm"),
    batch=make_batch(64),
    precision="bf16",
)
EVERY = search(SMALL, keep=10**6)


PLAN = Plan(SMALL, "time", ranked_layouts(SMALL, EVERY.take(slice(1))), (), EVERY)


def compare_with_its_plan(job: Job) -> Comparison:
    return make_plan(Question.of_job(job)).compare(job)


@settings(max_examples=20)
@given(st.integers(0, len(EVERY) - 1))
def test_a_layouts_rank_is_its_place_among_all(place: int) -> None:
    """Counted here by hand over every layout that fits."""
    job = SMALL.job(EVERY.layout(place))
    found = PLAN.compare(job)
    faster = int(np.sum(EVERY.seconds < EVERY.seconds[place] * (1 - 1e-9)))
    assert (found.own.rank, found.fits, found.feasible) == (faster + 1, True, len(EVERY))
    assert found.more == pytest.approx(EVERY.seconds[place] / EVERY.seconds[0] - 1)


def test_the_best_layout_is_the_first_and_ties_with_itself() -> None:
    found = PLAN.compare(SMALL.job(EVERY.layout(0)))
    assert (found.own.rank, found.same, found.own.tie, found.more) == (1, True, True, 0.0)


def test_blooms_own_layout_is_among_the_best_and_its_time_is_nearly_the_measured_one() -> None:
    """Training took 104.5 s an iteration."""
    found = compare_with_its_plan(load_job(BLOOM))
    assert found.own.seconds_low < 104.5 < found.own.seconds_high
    assert found.own.rank <= 10
    assert not found.same
    assert "memory (recompute)" in found.difference  # it recomputes, the best does not


def test_the_difference_is_the_part_that_grew_most() -> None:
    """A step of 32 micro batches over 8 stages waits; one without stages does not."""
    layout = Layout(dp=1, pp=4, tp=2, micro_batch=16, zero=1)
    found = PLAN.compare(SMALL.job(layout))
    assert found.more > 0.2
    assert not found.own.tie
    assert "pipeline bubble" in found.difference


def test_a_layout_that_does_not_fit_is_compared_all_the_same() -> None:
    job = apply_settings(load_job(BLOOM), ["layout.recompute=none", "layout.micro_batch=2"])
    found = compare_with_its_plan(job)
    assert not found.fits
    assert found.own.memory_gib > job.cluster.device.memory_gib
    assert found.own.seconds == pytest.approx(float(predict(columns_of([job]), job.cluster, job.trainer).seconds[0]))
    assert found.own.rank >= 1


def test_a_layout_that_no_plan_lists_can_be_compared() -> None:
    """Stages written out layer by layer."""
    job = SMALL.job(Layout(dp=4, pp=2, micro_batch=1, split=(5, 7)))
    assert PLAN.compare(job).own.rank > 1


def test_nothing_is_better_than_the_best() -> None:
    assert rank_of(SMALL, float(EVERY.seconds[0])) == 1
    assert rank_of(SMALL, float("inf")) == len(EVERY) + 1


@pytest.mark.parametrize("change", [{"optimizer": "fused-adam"}, {"precision": "fp16"}, {"batch": make_batch(128)}])
def test_a_job_that_asks_something_else_is_refused_with_a_sentence(change: dict[str, object]) -> None:
    (name,) = change
    with pytest.raises(Mistake, match=f"another {name} than that of the job .*, so their layouts cannot be compared"):
        PLAN.compare(SMALL.job(EVERY.layout(0)).replace(**change))
