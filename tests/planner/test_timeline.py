"""The simulated timelines idle as the papers' formulas say, and respect what depends on what."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.planner.timeline import Span, idle_share, timeline


def equal(schedule: str, stages: int, micro_batches: int, virtual: int = 1) -> list[Span]:
    return timeline(schedule, [1.0] * stages, [2.0] * stages, micro_batches, virtual)  # type: ignore[arg-type]


@given(stages=st.integers(1, 8), micro_batches=st.integers(1, 20), schedule=st.sampled_from(["gpipe", "1f1b"]))
def test_plain_pipelines_idle_as_gpipe_and_pipedream_say(stages: int, micro_batches: int, schedule: str) -> None:
    """(p - 1)/(m + p - 1): arXiv 1811.06965 and 2104.04473."""
    idle = idle_share(equal(schedule, stages, micro_batches), stages)
    assert idle == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@given(stages=st.integers(2, 6), rounds=st.integers(1, 4), virtual=st.integers(2, 4))
def test_interleaving_divides_the_bubble_by_the_chunks(stages: int, rounds: int, virtual: int) -> None:
    """The bubble is (p - 1)/(v m) of the busy time: arXiv 2104.04473."""
    idle = idle_share(equal("interleaved", stages, rounds * stages, virtual), stages)
    ratio = (stages - 1) / (virtual * rounds * stages)
    assert idle == pytest.approx(ratio / (1 + ratio))


@given(stages=st.integers(2, 8), more=st.integers(0, 10))
def test_zero_bubble_idles_less_than_1f1b(stages: int, more: int) -> None:
    zero, plain = (idle_share(equal(name, stages, stages + more), stages) for name in ("zero-bubble", "1f1b"))
    assert zero < plain


@given(
    stages=st.integers(1, 5),
    rounds=st.integers(1, 3),
    schedule=st.sampled_from(["gpipe", "1f1b", "zero-bubble", "interleaved"]),
    data=st.data(),
)
def test_no_stage_does_two_things_at_once_and_no_pass_starts_before_its_input(
    stages: int, rounds: int, schedule: str, data: st.DataObject
) -> None:
    virtual = 2 if schedule == "interleaved" else 1
    seconds = [data.draw(st.floats(0.1, 3)) for _ in range(stages)]
    spans = timeline(schedule, seconds, [2 * s for s in seconds], rounds * stages, virtual)  # type: ignore[arg-type]
    for stage in range(stages):
        mine = sorted((span for span in spans if span.stage == stage), key=lambda span: span.start)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(mine))
        assert sum(span.end - span.start for span in mine) == pytest.approx(3 * seconds[stage] * rounds * stages)
    ends = {(span.work, span.stage): span.end for span in spans}
    for span in spans:
        if span.stage and span.work.pass_ == "forward":
            assert span.start >= ends[span.work, span.stage - 1] - 1e-9
        if span.work.pass_ == "backward":
            assert span.start >= ends[span.work._replace(pass_="forward"), span.stage] - 1e-9
