"""Days, device-hours and failures, against published values, a simulation and hand computations."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.planner.one_by_one import jobs, small_question
from trimaran.cost.columns import columns_of
from trimaran.cost.predict import predict
from trimaran.planner.estimates import (
    NodeEstimate,
    best_on,
    doublings,
    estimate_nodes,
    iterations_for,
    make_estimate,
    node_counts,
    parse_tokens,
)
from trimaran.planner.plan import make_plan
from trimaran.planner.reliability import Failures, daly_interval_seconds, expected_goodput, reliability
from trimaran.spec import Mistake, presets

HOUR = 3600.0
EIGHT = small_question().replace(cluster=presets.cluster("jean-zay-a100-80gb"))  # devices a node
STEP = replace(make_plan(EIGHT).best, seconds=10.0, seconds_low=9.0, seconds_high=12.0)


def made(found: NodeEstimate | None) -> NodeEstimate:
    assert found is not None
    return found


@pytest.mark.parametrize(("mtbf_minutes", "printed"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_dalys_interval_is_the_one_in_his_paper(mtbf_minutes: float, printed: float) -> None:
    """Figures 3 to 5 of the paper: checkpoints of 5 minutes, restarts of 10."""
    minutes = daly_interval_seconds(5 * 60, mtbf_minutes * 60) / 60
    assert float(f"{minutes:.{2 if printed < 10 else 3 if printed > 100 else 2}g}") == printed


def test_rare_failures_leave_youngs_interval_and_his_loss() -> None:
    checkpoint, mtbf = 30.0, 1e7
    interval = daly_interval_seconds(checkpoint, mtbf)
    assert interval == pytest.approx(math.sqrt(2 * checkpoint * mtbf), rel=2e-3)
    lost = 1 - expected_goodput(interval, checkpoint, 0.0, mtbf)
    assert lost == pytest.approx(math.sqrt(2 * checkpoint / mtbf), rel=5e-3)


@pytest.mark.parametrize("mtbf", [900.0, 4 * HOUR, 500 * HOUR])
def test_no_other_interval_gives_noticeably_more_goodput(mtbf: float) -> None:
    best = expected_goodput(daly_interval_seconds(120.0, mtbf), 120.0, 300.0, mtbf)
    others = [expected_goodput(interval, 120.0, 300.0, mtbf) for interval in np.geomspace(10, 1e6, 2000)]
    assert best >= 0.999 * max(others)


def simulated_goodput(interval: float, checkpoint: float, restart: float, mtbf: float, segments: int) -> float:
    """Played through event by event: train, checkpoint, fail at any moment, restart (which may fail), go on."""
    random, wall = np.random.default_rng(7), 0.0
    until_failure = random.exponential(mtbf)
    for _ in range(segments):
        pending = interval + checkpoint
        while pending > 0:
            step = min(pending, until_failure)
            wall, until_failure, pending = wall + step, until_failure - step, pending - step
            if until_failure <= 0:
                pending = interval + checkpoint
                until_failure = random.exponential(mtbf)
                while until_failure < restart:
                    wall += until_failure
                    until_failure = random.exponential(mtbf)
                wall, until_failure = wall + restart, until_failure - restart
    return segments * interval / wall


@pytest.mark.parametrize(
    ("nodes", "mtbf_hours", "checkpoint", "restart"),
    [(48, 20_000, 40, 600), (2048, 6_300, 60, 900), (12_500, 6_300, 30, 600), (12_500, 2_000, 120, 300)],
)
def test_goodput_agrees_with_a_simulation(nodes: int, mtbf_hours: float, checkpoint: float, restart: float) -> None:
    found = reliability(nodes, Failures(mtbf_hours, checkpoint, restart))
    mtbf = mtbf_hours * HOUR / nodes
    played = simulated_goodput(found.checkpoint_every_minutes * 60, checkpoint, restart, mtbf, 20_000)
    assert found.goodput == pytest.approx(played, rel=0.02)


def test_shares_of_the_wall_time_add_up() -> None:
    found = reliability(1000, Failures(5000.0, 60.0, 600.0))
    assert found.goodput + found.checkpoint_share + found.lost_share == pytest.approx(1.0)
    assert min(found.goodput, found.checkpoint_share, found.lost_share) > 0


def test_more_nodes_fail_more_often() -> None:
    goodputs = [reliability(nodes, Failures(10_000.0)).goodput for nodes in doublings(12_500)]
    assert goodputs == sorted(goodputs, reverse=True)


def test_an_estimate_is_this_arithmetic() -> None:
    """300e9 tokens / (2048 x 2048) = 71525.6 steps of 10 s = 8.278 days; 8 devices, 500 W, 2 an hour."""
    steps = iterations_for(300_000_000_000, 2048, 2048)
    assert steps == 71_526
    found = made(estimate_nodes(1, STEP, steps, watts=500.0, price=2.0))
    assert found.days == pytest.approx(8.27847, rel=1e-5)
    assert found.device_hours == pytest.approx(1589.467, rel=1e-5)
    assert found.energy_mwh == pytest.approx(0.794733, rel=1e-5)
    assert found.cost == pytest.approx(3178.93, rel=1e-5)
    assert (found.days_low, found.days_high) == (pytest.approx(0.9 * found.days), pytest.approx(1.2 * found.days))
    assert made(estimate_nodes(1, STEP, steps)).cost is None


def test_failures_lengthen_the_days_by_the_goodput() -> None:
    calm = made(estimate_nodes(512, STEP, 1000))
    failing = made(estimate_nodes(512, STEP, 1000, Failures(5000.0)))
    assert failing.days == pytest.approx(calm.days / failing.goodput)
    assert failing.goodput < 1


def test_a_machine_that_fails_before_every_checkpoint_never_ends() -> None:
    assert estimate_nodes(12_500, STEP, 1000, Failures(1.0, checkpoint_seconds=600.0)) is None


def test_free_checkpoints_leave_only_the_restarts() -> None:
    """Restarts of R after each failure, each of which may fail itself: goodput e^(-R/M)."""
    found = reliability(100, Failures(1000.0, checkpoint_seconds=0.0, restart_seconds=600.0))
    assert found.goodput == pytest.approx(math.exp(-600 / 36_000), rel=1e-3)


def test_node_counts() -> None:
    cluster = presets.cluster("jean-zay-a100-80gb")
    assert doublings(1) == [1]
    assert node_counts("", cluster) == [1, 2, 4, 8, 16, 32, 48]
    assert node_counts("32, 8,8", cluster) == [8, 32]
    for wrong in ("0", "-1", "8,x", "8;9", "12501"):
        with pytest.raises(Mistake, match="nodes"):
            node_counts(wrong, cluster)


@pytest.mark.parametrize(
    ("text", "tokens"), [("300B", 300 * 10**9), ("1.4t", 14 * 10**11), ("26e9", 26 * 10**9), ("5000", 5000)]
)
def test_sizes_are_read_as_people_write_them(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["300Bx", "0", "-3B", "", "B", "nan", "inf", "1e99", "3 00B"])
def test_other_sizes_are_a_mistake(text: str) -> None:
    with pytest.raises(Mistake, match="tokens is"):
        parse_tokens(text)


def test_the_curve_takes_the_best_layout_of_each_number_of_nodes() -> None:
    """Against every layout of two small node counts, built one by one as Jobs and predicted one by one."""
    question = small_question()
    found = make_estimate(question, 10**9, [1, 2])
    assert not found.impossible
    assert len(found.nodes) == 2
    for one in found.nodes:
        by_job = {
            job.layout: float(predict(columns_of([job]), job.cluster, job.trainer).seconds[0])
            for job in jobs(question, one.nodes)
        }
        assert one.step.seconds == pytest.approx(min(by_job.values()))
        assert by_job[one.step.layout] == pytest.approx(one.step.seconds)
        assert one.step.seconds_low < one.step.seconds < one.step.seconds_high
        assert one.days_low / one.days == pytest.approx(one.step.seconds_low / one.step.seconds)


def test_a_number_of_nodes_that_cannot_run_says_why() -> None:
    question = small_question()
    assert "GiB" in str(best_on(question.replace(model=presets.model("bloom-176b")), 1))
    odd = make_estimate(question, 10**9, [1, 37])
    assert [one.nodes for one in odd.nodes] == [1]
    assert "37 nodes" in odd.impossible[37]
