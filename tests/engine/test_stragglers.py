"""A slow rank is named, whatever makes it slow; ranks that are equally slow are not."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.commands import rank_pids, train
from tests.processes import until
from trimaran.engine.metrics.stragglers import WINDOW, StragglerDetector
from trimaran.spec import Layout

SLOWED = 0.03  # seconds that the rank is stopped in every 0.04
# An update of the weights that takes about as long, so that no step is missed by the stops, and little else.
MODEL = (
    "--set",
    "model.hidden=512",
    "--set",
    "model.seq_len=16",
    "--set",
    "batch.size=2",
    "--set",
    "layout.micro_batch=1",
)


@pytest.mark.parametrize(
    "layout", [("--set", "layout.dp=2"), ("--set", "layout.dp=2", "--set", "layout.zero=3")], ids=["dp2", "zero3"]
)
def test_a_rank_that_runs_a_quarter_of_the_time_is_named(layout: tuple[str, ...], tmp_path: Path) -> None:
    """As on a node whose cores something else uses: stopped and continued by signals."""
    metrics = tmp_path / "metrics.jsonl"
    process = train(
        "tiny", "--steps", "100000", *MODEL, *layout, "--heartbeats", str(tmp_path), "--metrics", str(metrics)
    )
    assert process.stderr is not None
    until(lambda: metrics.exists() and metrics.stat().st_size, "a first step")
    slow = rank_pids(tmp_path)[1]
    try:
        until(lambda: slowed(slow, metrics), "a straggler in the metrics")
    finally:
        os.kill(slow, signal.SIGCONT)
    process.terminate()
    _, err = process.communicate()
    found = [json.loads(line)["straggler"] for line in metrics.read_text().splitlines()]
    named = [straggler for straggler in found if straggler]
    assert {(straggler["rank"], straggler["host"]) for straggler in named} == {(1, socket.gethostname())}
    assert all(straggler["slowdown"] > 1.5 for straggler in named)
    assert f"trimaran: warning: rank 1 on {socket.gethostname()} takes " in err
    assert found[0] is None


def slowed(pid: int, metrics: Path) -> bool:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(SLOWED)
    os.kill(pid, signal.SIGCONT)
    time.sleep(SLOWED / 3)
    return '"straggler": {' in metrics.read_text()


@given(
    usual=st.floats(0.01, 10.0),
    noise=st.lists(st.floats(0.8, 1.2), min_size=8 * WINDOW, max_size=8 * WINDOW),
    slow=st.integers(0, 7),
    factor=st.floats(2.5, 10.0),
)
def test_only_a_rank_that_is_slower_than_its_peers_is_found(
    usual: float, noise: list[float], slow: int, factor: float
) -> None:
    """Two stages of four ranks; the second stage has twice the work of the first."""
    detectors = [StragglerDetector(Layout(pp=2, dp=4), [f"node{rank}" for rank in range(8)]) for _ in range(2)]
    for i in range(WINDOW):
        seconds = [usual * (2 if rank >= 4 else 1) * noise[8 * i + rank] for rank in range(8)]
        assert detectors[0].find(seconds) is None
        seconds[slow] *= factor
        found = detectors[1].find(seconds)
    assert found is not None
    assert (found.rank, found.host) == (slow, f"node{slow}")
    assert found.slowdown == pytest.approx(factor, rel=0.6)
