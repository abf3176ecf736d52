"""Ramp-ups: Megatron's rule iteration by iteration, every schedule tried, hand-made schedules."""

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from tests.planner.one_by_one import jobs, small_question
from trimaran.cost.columns import columns_of
from trimaran.cost.predict import predict
from trimaran.planner.ramp import (
    Configuration,
    NoLayout,
    Phase,
    PhaseCost,
    PhaseOptions,
    RampSchedule,
    Stretch,
    best_schedule,
    best_unchanged,
    cheapest_path,
    number_rows,
    options_for,
    practical_only,
    ramp_phases,
)
from trimaran.planner.ramp_plan import HandStage, cost_hand_schedule, losses, main_loss, parse_stages, ramp_loss
from trimaran.spec import Batch, Layout, Mistake, Ramp


def by_the_rule(start: int, increment: int, samples: int, full: int, total: int) -> list[tuple[int, int]]:
    """Megatron's rule, one iteration after the other: (batch, iterations)."""
    consumed, sizes = 0, list[int]()
    per = samples / ((full - start) / increment)
    while consumed < total:
        size = full if consumed > samples else min(full, start + int(consumed / per) * increment)
        sizes.append(size)
        consumed += size
    return [(size, len(list(group))) for size, group in itertools.groupby(sizes)]


@pytest.mark.parametrize(
    ("start", "increment", "samples", "full"),
    [(32, 32, 20_000, 512), (16, 16, 6_000, 768), (192, 16, 97_656, 2048), (32, 32, 300, 512), (64, 1, 999, 128)],
)
def test_phases_follow_megatrons_rule(start: int, increment: int, samples: int, full: int) -> None:
    run = ramp_phases(Batch(size=full, ramp=Ramp(start=start, increment=increment, samples=samples)), 150_000)
    assert [(p.batch, p.iterations) for p in run] == by_the_rule(start, increment, samples, full, 150_000)
    assert all(before.end_sample == after.first_sample for before, after in itertools.pairwise(run))


def test_a_run_may_end_before_its_ramp() -> None:
    run = ramp_phases(Batch(size=512, ramp=Ramp(start=32, increment=32, samples=20_000)), 3_000)
    assert run[-1].batch < 512
    assert run[-1].end_sample >= 3_000 > run[-1].end_sample - run[-1].batch


def configuration(nodes: int, micro_batch: int = 1, pp: int = 1) -> Configuration:
    return Configuration(nodes, Layout(dp=nodes * 4 // pp, pp=pp, micro_batch=micro_batch))


def listed(seconds: dict[Configuration, float], ids: dict[Configuration, int]) -> PhaseOptions:
    order = list(seconds)
    times = np.array([seconds[c] for c in order], dtype=float)
    numbers = np.array([ids[c] for c in order], dtype=np.int64)
    return PhaseOptions(numbers, times, lambda at: PhaseCost(order[at], float(times[at]), 0.1))


CONFIGURATIONS = [configuration(nodes) for nodes in (1, 2, 4, 8)]
IDS = {c: i for i, c in enumerate(CONFIGURATIONS)}


@pytest.mark.parametrize("seed", range(25))
def test_the_schedule_is_the_best_of_all_schedules(seed: int) -> None:
    random = np.random.default_rng(seed)
    run = [Phase(32 * (i + 1), 0, int(random.integers(1, 400))) for i in range(5)]
    able = [{c: float(random.uniform(1, 9)) for c in CONFIGURATIONS if random.random() < 0.7} for _ in run]
    able = [options or {CONFIGURATIONS[0]: 5.0} for options in able]
    switch_hours = float(random.choice([0.0, 0.05, 0.3, 10.0]))

    def hours(path: tuple[Configuration, ...]) -> float:
        work = sum(p.iterations * o[c] for p, o, c in zip(run, able, path, strict=True)) / 3600
        return work + switch_hours * sum(a != b for a, b in itertools.pairwise(path))

    every = min(hours(path) for path in itertools.product(*able))
    found = best_schedule(run, [listed(options, IDS) for options in able], switch_hours)
    assert found.hours == pytest.approx(every)
    assert [phase for phase, _ in found.by_phase()] == run


def test_real_layouts_are_scheduled_as_well_as_trying_every_schedule() -> None:
    """Every Job of 1 and 2 nodes built and predicted one by one, every schedule of three phases tried."""
    question = small_question()
    run = [Phase(4, 0, 500), Phase(8, 2000, 60), Phase(16, 2480, 900)]
    switch_hours = 0.02
    tried: list[dict[tuple[int, Layout], float]] = []
    for phase in run:
        able = [job for nodes in (1, 2) for job in jobs(question.replace(batch=Batch(size=phase.batch)), nodes)]
        hours = phase.iterations / 3600 * predict(columns_of(able), question.cluster, question.trainer).seconds
        tried.append({(job.cluster.nodes, job.layout): float(h) for job, h in zip(able, hours, strict=True)})
    number = {c: i for i, c in enumerate({c for hours in tried for c in hours})}
    ids = [np.array([number[c] for c in hours]) for hours in tried]
    one, two, three = (np.array(list(hours.values())) for hours in tried)
    later = two[:, None] + three[None, :] + switch_hours * (ids[1][:, None] != ids[2][None, :])
    every = min(
        float((hours + later + switch_hours * (ids[1] != first)[:, None]).min())
        for first, hours in zip(ids[0], one, strict=True)
    )
    found = best_schedule(run, options_for(question, run, switch_hours), switch_hours)
    assert found.hours == pytest.approx(every, rel=1e-6)

    common = set(tried[0]) & set(tried[1]) & set(tried[2])
    unchanged = best_unchanged(
        question.replace(batch=Batch(size=16, ramp=Ramp(start=4, increment=4, samples=1))), run, switch_hours
    )
    assert unchanged is not None
    assert len(unchanged.stretches) == 1
    assert unchanged.hours == pytest.approx(min(sum(hours[c] for hours in tried) for c in common), rel=1e-6)


def test_a_batch_that_nothing_divides_is_said() -> None:
    question = small_question()
    eight = question.replace(fixed={"dp": frozenset([8])})
    with pytest.raises(NoLayout, match="batch 4"):
        options_for(eight, [Phase(4, 0, 1)], 0.1)
    assert best_unchanged(eight, [Phase(4, 0, 1)], 0.1) is None


def test_the_practical_search_keeps_what_the_user_fixed() -> None:
    question = small_question().replace(fixed={"tp": frozenset([16])})
    assert practical_only(question).fixed["tp"] == {16}
    assert 64 not in practical_only(question).fixed["mbs"]  # 64 x 2048 tokens


def test_dear_switches_are_not_made_and_free_ones_are() -> None:
    run = [Phase(32, 0, 100), Phase(64, 3200, 100)]
    small, large = CONFIGURATIONS[:2]
    options = [listed({small: 1.0, large: 2.0}, IDS), listed({small: 3.0, large: 1.0}, IDS)]
    assert [c.configuration for _, c in best_schedule(run, options, 0.0).by_phase()] == [small, large]
    dear = best_schedule(run, options, 1.0)  # 300 s on the large one throughout, against 200 s and an hour
    assert [s.configuration for s in dear.stretches] == [large]
    assert dear.hours == pytest.approx(300 / 3600)


def test_hours_and_node_hours_count_the_switches() -> None:
    run = [Phase(32, 0, 3600), Phase(64, 115_200, 3600)]
    small, large = CONFIGURATIONS[:2]
    found = best_schedule(run, [listed({small: 1.0}, IDS), listed({large: 2.0}, IDS)], 0.5)
    assert found.hours == pytest.approx(1 + 0.5 + 2)
    assert found.node_hours == pytest.approx(1 * 1 + 2 * 2.5)
    assert [start for start, _ in found.starts()] == [0.0, 1.5]


def test_equal_rows_get_equal_numbers_in_every_phase() -> None:
    first, second = np.array([[1, 2], [3, 4]]), np.array([[3, 4], [5, 6], [1, 2]])
    a, b = number_rows([first, second])
    assert (b[2], b[0]) == (a[0], a[1])
    assert len({*a, *b}) == 3


def test_a_path_may_return_to_a_configuration() -> None:
    ids = [np.array([0]), np.array([1]), np.array([0])]
    assert cheapest_path(ids, [np.array([1.0])] * 3, 0.5) == [0, 0, 0]


def schedule_of(seconds: dict[Configuration, float], stage: HandStage, run: Sequence[Phase]) -> RampSchedule | None:
    """The stage's configuration, if its replicas divide every batch."""
    for c, time in seconds.items():
        same = (c.nodes, c.layout.micro_batch) == (stage.nodes, stage.micro_batch)
        if same and all(phase.batch % (c.layout.dp * c.layout.micro_batch) == 0 for phase in run):
            return RampSchedule((Stretch(tuple(run), tuple(PhaseCost(c, time, 0.0) for _ in run)),), 0.0)
    return None


def test_a_hand_schedule_holds_each_stage_until_the_next() -> None:
    run = [Phase(32, 0, 100), Phase(48, 3200, 100), Phase(64, 8000, 100)]
    seconds = {configuration(1): 2.0, configuration(2, 2): 1.0}
    schedule, passed_over = cost_hand_schedule(
        parse_stages("1:32:1,2:64:2"), run, partial(schedule_of, seconds), lambda s, b: "", 0.5
    )
    assert schedule is not None
    assert [c.configuration.nodes for _, c in schedule.by_phase()] == [1, 1, 2]
    assert schedule.hours == pytest.approx(500 / 3600 + 0.5)
    assert not passed_over


def test_a_stage_that_cannot_divide_a_batch_on_the_way_is_passed_over() -> None:
    """The notes' 16:64:2 with 32 replicas wants multiples of 64, but a ramp in steps of 32 comes through 96."""
    stages = parse_stages("16:32:1:1:2,16:64:2:1:2,16:128:4:1:2")
    run = [Phase(batch, 0, 10) for batch in (32, 64, 96, 128)]
    seconds = {configuration(16, micro_batch, 2): 1.0 for micro_batch in (1, 2, 4)}
    schedule, passed_over = cost_hand_schedule(
        stages, run, partial(schedule_of, seconds), lambda s, b: f"{b} does not divide", 0.0
    )
    assert schedule is not None
    assert [c.configuration.layout.micro_batch for _, c in schedule.by_phase()] == [1, 1, 1, 4]
    assert passed_over == ("16:64:2:1:2 is passed over: 96 does not divide",)


def test_a_hand_schedule_that_cannot_begin_has_no_hours() -> None:
    run = [Phase(2, 0, 10), Phase(4, 20, 10)]
    schedule, _ = cost_hand_schedule(
        parse_stages("1:2:1,1:4:1"), run, partial(schedule_of, {configuration(1): 1.0}), lambda s, b: "", 0.0
    )
    assert schedule is None


def test_a_loss_names_the_bubble() -> None:
    run = [Phase(32, 0, 3600), Phase(64, 115_200, 3600)]
    whole, halves = configuration(8), configuration(8, 1, 2)  # 16 replicas of 2 stages: 2 micro batches at batch 32
    best = RampSchedule((Stretch(tuple(run), (PhaseCost(whole, 1.0, 0.0), PhaseCost(whole, 2.0, 0.0))),), 0.1)
    hand = RampSchedule((Stretch(tuple(run), (PhaseCost(halves, 1.5, 0.33), PhaseCost(halves, 2.2, 0.2))),), 0.1)
    (loss,) = losses(best, hand)
    assert loss["hours"] == pytest.approx(0.7)
    assert loss["percent"] == pytest.approx(100 * (3.7 / 3 - 1))
    assert "batch 32" in loss["why"]
    assert "2 micro batches per replica on pp 2: 33% bubble" in main_loss(best, hand)
    assert ramp_loss(best, hand) == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["16:32", "16:32:x", "16:0:1", "16:32:1:1", "16:64:1,16:32:1", ""])
def test_a_wrong_schedule_is_a_mistake(text: str) -> None:
    with pytest.raises(Mistake):
        parse_stages(text)
