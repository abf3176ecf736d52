"""The plan agrees with what was measured, and behaves as a search for the best must."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.cost.predict import interval
from trimaran.ledger.published import published
from trimaran.planner.explain import PART_LABELS, step_breakdown
from trimaran.planner.plan import make_plan, ties
from trimaran.planner.question import Question, make_batch, parse_fix, with_nodes
from trimaran.planner.ranking import best_of_each_cut, search
from trimaran.spec import Mistake, Model, Trial, presets

A100 = presets.cluster("jean-zay-a100-80gb")
SMALL = Model.of({"name": "small", "layers": 12, "hidden": 1536, "heads": 12})


def measured_181b() -> list[Trial]:
    """The layouts of the 181B on 48 nodes after the network was mended, in one batch size."""
    return [
        trial
        for trial in published(("published.csv",)).trials
        if trial.setup.size_label == "181B"
        and trial.setup.nodes == 48
        and trial.setup.gbs == 2048
        and trial.source.date == "02-25"
        and trial.outcome.status in ("ok", "oom")
    ]


def planned_181b() -> Question:
    return Question(
        model=presets.model("gpt-181b"),
        cluster=with_nodes(A100, 48),
        trainer=presets.trainer("megatron-deepspeed-2022"),
        batch=make_batch(2048),
        precision="fp16",
        fixed=parse_fix(["recompute=full", "zero=1", "split=even", "sp=false", "nodes=48"]),
    )


def test_the_fastest_layout_measured_is_ranked_first_or_tied_and_what_ran_out_of_memory_is_not_listed() -> None:
    question, trials = planned_181b(), measured_181b()
    found = best_of_each_cut(search(question))
    cuts = list(zip(found.rows.dp, found.rows.tp, found.rows.pp, found.rows.mbs, strict=True))
    places = {}
    for trial in trials:
        cut = (trial.setup.dp, trial.setup.tp, trial.setup.pp, trial.setup.mbs)
        assert (cut in cuts) == (trial.outcome.status == "ok"), cut
        if trial.outcome.status == "ok":
            places[cut] = cuts.index(cut)
    assert len(places) >= 5
    assert any(trial.outcome.status == "oom" for trial in trials)
    shown = found.take(np.array(sorted(places.values())))
    fastest = min((trial for trial in trials if trial.outcome.seconds), key=lambda trial: trial.outcome.seconds or 0)
    best = (fastest.setup.dp, fastest.setup.tp, fastest.setup.pp, fastest.setup.mbs)
    assert best == (8, 4, 12, 2)
    place = sorted(places.values()).index(places[best])
    assert ties(shown, interval(shown.rows, question.cluster, question.trainer))[place]


def small(nodes: int, *fix: str, gbs: int = 64) -> Question:
    cluster = with_nodes(A100, nodes)
    return Question(SMALL, cluster, presets.trainer("trimaran"), make_batch(gbs), "bf16", fixed=parse_fix(fix))


@settings(max_examples=15)
@given(few=st.integers(1, 5), more=st.integers(0, 4), gbs=st.sampled_from([16, 48, 64, 100]))
def test_more_nodes_never_make_the_best_worse(few: int, more: int, gbs: int) -> None:
    best = search(small(few, gbs=gbs)).seconds[0]
    assert search(small(few + more, gbs=gbs)).seconds[0] <= best


@settings(max_examples=15)
@given(fix=st.sampled_from(["tp=4", "pp=2", "mbs=2", "zero=2", "schedule=gpipe", "recompute=selective"]))
def test_fixing_a_field_never_makes_the_best_better(fix: str) -> None:
    assert search(small(2, fix)).seconds[0] >= search(small(2)).seconds[0]


def test_each_objective_is_best_in_what_it_asks_for() -> None:
    found = {name: search(small(4), name) for name in ("time", "tokens-per-device-hour", "memory")}
    assert found["time"].seconds[0] == min(f.seconds[0] for f in found.values())
    assert found["memory"].memory_gib[0] == min(f.memory_gib[0] for f in found.values())
    device_seconds = {name: float(f.seconds[0] * f.rows.devices[0]) for name, f in found.items()}
    assert device_seconds["tokens-per-device-hour"] == min(device_seconds.values())


def test_nothing_that_is_listed_needs_more_memory_than_a_device_has() -> None:
    found = search(planned_181b().replace(fixed={}))
    assert (found.memory_gib <= A100.device.memory_gib).all()
    assert found.counts.memory > 0
    assert found.counts.considered == found.counts.refused + found.counts.memory + found.counts.feasible


def test_the_parts_of_a_step_sum_to_the_step() -> None:
    question = planned_181b().replace(fixed={}, trainer=presets.trainer("trimaran"), precision="bf16")
    found = search(question)
    parts = step_breakdown(found.rows, question.cluster, question.trainer)
    assert list(parts.seconds) == list(PART_LABELS)
    total = sum(np.broadcast_to(value, found.seconds.shape) for value in parts.seconds.values())
    np.testing.assert_allclose(total, found.seconds, rtol=1e-9)
    assert min(float(np.min(value)) for value in parts.seconds.values()) >= 0


def test_why_compares_with_another_tensor_width_pipeline_and_micro_batch() -> None:
    question = small(4, "mbs=2")
    sentences = make_plan(question).why
    assert [sentence.split()[0] for sentence in sentences] == ["tp", "pp", "mbs"]
    assert "takes" in sentences[0]
    assert "because it is fixed" in sentences[2]


@pytest.mark.parametrize(
    ("question", "cause", "remedy"),
    [
        (small(2, "tp=5"), "tp=5 excludes the last", "works: tp=4"),
        (small(2, "tp=4", "mbs=3"), "mbs=3 excludes the last", "works: mbs="),
        (
            small(1, "recompute=full", "schedule=zero-bubble", "pp=2"),
            "excludes the last",
            "The nearest that works: ",
        ),
        (planned_181b().replace(cluster=with_nodes(A100, 1), fixed={}), "the smallest needs", "nodes="),
    ],
)
def test_an_impossible_question_is_answered_with_the_cause_and_the_nearest_that_works(
    question: Question, cause: str, remedy: str
) -> None:
    assert not len(search(question))
    said = make_plan(question).impossible
    assert cause in said
    assert remedy in said


def test_the_relaxation_that_is_proposed_works() -> None:
    question = planned_181b().replace(cluster=with_nodes(A100, 1), fixed={})
    nodes = int(make_plan(question).impossible.split("nodes=")[1].rstrip("."))
    assert not len(search(question.replace(cluster=with_nodes(A100, nodes - 1))))
    assert len(search(question.replace(cluster=with_nodes(A100, nodes))))


def test_a_precision_the_device_lacks_is_said_before_any_search() -> None:
    with pytest.raises(Mistake, match="has no fp8, only"):
        search(small(1).replace(precision="fp8"))
