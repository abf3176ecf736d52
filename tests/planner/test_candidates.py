"""The planner's candidates are exactly the layouts that the rules of a Job allow."""

from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.planner.candidates import blocks, cuts_excluded, divisors, layout_of
from trimaran.planner.question import Question, make_batch, parse_fix
from trimaran.spec import Batch, Job, Layout, Model, Ramp, presets
from trimaran.spec.rules import problems
from trimaran.spec.trainer import Recompute, Schedule

TRAINERS = ("trimaran", "megatron-deepspeed-2022", "megatron-lm", "torchtitan")


def small(trainer: str, batch: Batch, nodes: int = 2, **shape: Any) -> Question:
    model = Model.of({"layers": 4, "hidden": 96, "heads": 6, "kv_heads": 6, "seq_len": 128, **shape})
    cluster = presets.cluster("jean-zay-a100-80gb").replace(nodes=nodes, devices_per_node=4)
    return Question(model, cluster, presets.trainer(trainer), batch, "bf16")


def listed(question: Question, block: int = 100_000) -> list[Layout]:
    found = []
    for made in blocks(question, block):
        rows = made.rows(np.nonzero(made.allowed))
        found += [layout_of(rows, i) for i in range(len(rows.dp))]
    return found


def says_something_new(layout: Layout) -> bool:
    """Layouts that mean the same as another are listed once."""
    if layout.pp == 1 and (layout.schedule != "1f1b" or layout.split != "even"):
        return False
    return not (layout.tp == 1 and layout.sequence_parallel)


def brute_force(question: Question) -> set[Layout]:
    """Every combination of fields, each checked by the rules as a Job of its own."""
    found = set()
    for nodes in range(1, question.cluster.nodes + 1):
        cluster = question.cluster.replace(nodes=nodes)
        devices = cluster.devices
        for dp, tp in product(range(1, devices + 1), repeat=2):
            if devices % (dp * tp):
                continue
            for mbs, virtual, schedule, zero, recompute, sequence, split in product(
                range(1, question.batch.size + 1),
                range(1, question.model.layers + 1),
                get_args(Schedule),
                range(4),
                get_args(Recompute),
                (False, True),
                ("even", "weighted"),
            ):
                layout = Layout.model_construct(
                    dp=dp,
                    tp=tp,
                    pp=devices // (dp * tp),
                    virtual_stages=virtual,
                    schedule=schedule,
                    micro_batch=mbs,
                    zero=zero,
                    recompute=recompute,
                    sequence_parallel=sequence,
                    split=split,
                )
                if question.batch.size % (dp * mbs) or not says_something_new(layout):
                    continue
                job = Job.model_construct(
                    model=question.model,
                    cluster=cluster,
                    trainer=question.trainer,
                    layout=layout,
                    batch=question.batch,
                    precision=question.precision,
                    optimizer="adam",
                )
                if not problems(job):
                    found.add(layout)
    # With one replica ZeRO shards nothing: the lowest stage stands for all.
    lowest = {key(layout): layout.zero for layout in sorted(found, key=lambda layout: -layout.zero)}
    return {layout for layout in found if layout.dp > 1 or layout.zero == lowest[key(layout)]}


def key(layout: Layout) -> tuple[Any, ...]:
    return tuple(value for name, value in layout if name != "zero")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_candidates_are_exactly_what_a_loop_over_jobs_finds(trainer: str) -> None:
    question = small(trainer, Batch(size=8, ramp=Ramp(start=4, increment=4, samples=100)), tied_embeddings=False)
    candidates = listed(question)
    assert len(candidates) == len(set(candidates))
    assert set(candidates) == brute_force(question)


def test_candidates_in_fp8_are_exactly_what_a_loop_over_jobs_finds() -> None:
    """Of 48 channels tp 3 leaves 16 and tp 2 leaves 24, which is not a multiple of 16; nor is one row of 24 tokens."""
    h200 = presets.cluster("hgx-h200").replace(nodes=2, devices_per_node=6)
    question = small("trimaran", Batch(size=4), hidden=48, seq_len=24, layers=2).replace(cluster=h200, precision="fp8")
    candidates = listed(question)
    assert set(candidates) == brute_force(question)
    assert {layout.tp for layout in candidates} == {1, 3}
    assert {layout.micro_batch for layout in candidates} == {2, 4}


def test_a_trainer_that_cannot_tie_embeddings_has_no_pipeline_for_them() -> None:
    assert {layout.pp for layout in listed(small("torchtitan", Batch(size=8)))} == {1}


def test_blocks_of_any_size_hold_the_same_layouts() -> None:
    question = small("trimaran", Batch(size=16))
    assert sorted(map(str, listed(question, block=50))) == sorted(map(str, listed(question)))


@settings(max_examples=30)
@given(
    layers=st.integers(1, 13),
    heads=st.integers(1, 12),
    nodes=st.integers(1, 4),
    start=st.integers(1, 12),
    steps=st.integers(0, 3),
    trainer=st.sampled_from(TRAINERS),
    chosen=st.randoms(use_true_random=False),
)
def test_every_candidate_is_a_job(
    layers: int, heads: int, nodes: int, start: int, steps: int, trainer: str, chosen: Any
) -> None:
    ramp = Ramp(start=start, increment=2, samples=1000) if steps else None
    question = small(
        trainer,
        Batch(size=start + 2 * steps, ramp=ramp),
        nodes,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        hidden=8 * heads,
    )
    candidates = listed(question)
    for layout in chosen.sample(candidates, min(len(candidates), 20)):
        assert question.job(layout).layout == layout  # a Job that exists is possible


@settings(max_examples=30)
@given(fix=st.sampled_from(["tp=2", "pp=1,2", "dp=2", "mbs=2", "zero=1", "recompute=full", "sp=true", "nodes=2"]))
def test_fixing_a_field_leaves_only_such_layouts_and_all_of_them(fix: str) -> None:
    free = small("trimaran", Batch(size=8))
    fixed = listed(free.replace(fixed=parse_fix([fix])))
    name, _, values = fix.partition("=")
    field = {"mbs": "micro_batch", "sp": "sequence_parallel"}.get(name, name)

    def kept(layout: Layout) -> bool:
        value = layout.devices // 4 if name == "nodes" else getattr(layout, field)
        return str(value).lower() in values.split(",")

    several = [layout for layout in listed(free) if kept(layout) and layout.dp > 1]  # see says_something_new
    assert all(kept(layout) for layout in fixed)
    assert sorted(str(layout) for layout in fixed if layout.dp > 1) == sorted(map(str, several))


def test_ways_to_cut_the_devices_are_counted_by_reason() -> None:
    """2 nodes of 4, 6 heads, 4 layers, batch 8: listed by hand with three loops."""
    question = small("trimaran", Batch(size=8))
    wrong_tp = wrong_dp = 0
    for tp, pp, dp in product(range(1, 9), repeat=3):
        if tp > 6 or pp > 6 or tp * pp * dp not in (4, 8):
            continue
        wrong_tp += 6 % tp != 0
        wrong_dp += 6 % tp == 0 and 8 % dp != 0
    assert list(cuts_excluded(question).values()) == [wrong_tp, 0, wrong_dp]
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert make_batch(64, "32,32,1000").sizes() == (32, 64)
