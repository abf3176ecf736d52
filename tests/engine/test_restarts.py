"""`trimaran train --restarts`: a rank that dies does not end the run, one that dies again and again does."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import Command, trimaran
from tests.engine.commands import ENVIRONMENT, ONE_THREAD, finished, rank_pids, train
from tests.processes import Process, finish, start
from trimaran.engine.restarts import Restarts

__all__ = ["trimaran"]
STEPS = 24
TINY = ("tiny", "--steps", str(STEPS), "--set", "layout.dp=2", "--set", "saving.every=4")


def loss_by_iteration(metrics: Path) -> dict[int, float]:
    """After a restart iterations are repeated: the later record counts."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {record["iteration"]: record["loss"] for record in records}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    metrics = tmp_path_factory.mktemp("undisturbed") / "metrics.jsonl"
    code, _, err = finished(*TINY, "--metrics", str(metrics))
    assert (code, err) == (0, "")
    return loss_by_iteration(metrics)


def kill_at(process: Process, iteration: int, heartbeats: Path, before: frozenset[int] = frozenset()) -> frozenset[int]:
    """Kill -9 a random rank after this iteration; not one of the ranks `before`, whose last lines are still read.
    Returns the ranks of this attempt."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(" iteration ") and int(line[11:19]) >= iteration:
            pids = rank_pids(heartbeats)
            if before.isdisjoint(pids):
                os.kill(random.choice(pids), signal.SIGKILL)
                return frozenset(pids)
    raise AssertionError(f"the run ended before iteration {iteration}")


def test_killed_ranks_do_not_end_the_run_and_do_not_change_its_losses(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    beats = tmp_path / "beats"
    files = ("--metrics", str(tmp_path / "metrics.jsonl"), "--heartbeats", str(beats))
    process = train(*TINY, "--set", f"saving.folder={tmp_path / 'saved'}", *files, "--restarts", "3")
    pids: frozenset[int] = frozenset()
    for iteration in (2, 7, 12):
        pids = kill_at(process, iteration, beats, pids)
    _, err = finish(process)
    assert process.returncode == 0, err
    said = [line for line in err.splitlines() if line.startswith("trimaran: restarting from ")]
    assert len(said) == 3
    assert "from the checkpoint of iteration " in said[2]
    resumed = loss_by_iteration(tmp_path / "metrics.jsonl")
    assert list(undisturbed) == list(range(1, STEPS + 1))
    assert resumed == pytest.approx(undisturbed, rel=1e-5)


def test_a_run_that_gets_no_further_is_given_up(tmp_path: Path) -> None:
    """The last checkpoint cannot be written: its folder is taken by a file."""
    (tmp_path / ".step-00000004.partial").write_text("")
    code, _, err = finished(*TINY, "--steps", "4", "--set", f"saving.folder={tmp_path}", "--restarts", "2")
    assert code == 4
    assert [line.split(";")[0] for line in err.splitlines() if not line.startswith("trimaran: Rank ")] == [
        "trimaran: restarting from iteration 1, because nothing is saved yet",
        "trimaran: restarting from iteration 1, because nothing is saved yet",
        "trimaran: giving up: 2 restarts in a row without a checkpoint after iteration 0.",
    ]


def test_a_signal_stops_a_run_that_was_restarted(tmp_path: Path) -> None:
    """Also one that comes before the ranks have started again."""
    process = train(*TINY, "--steps", "100000", "--heartbeats", str(tmp_path), "--restarts", "3")
    kill_at(process, 2, tmp_path)
    assert process.stderr is not None
    assert any(line.startswith("trimaran: restarting from iteration 1") for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process)
    assert process.returncode == 5, err


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(("--set", "recipe.learning_rate=1e25", "--stop-on-nan"), 6), (("--set", "layout.tp=3"), 2)],
)
def test_what_a_restart_cannot_mend_is_not_restarted(failure: tuple[str, ...], expected: int, tmp_path: Path) -> None:
    folder = ("--set", f"saving.folder={tmp_path}")
    code, _, err = finished("tiny", "--steps", "4", *failure, *folder, "--restarts", "3")
    assert code == expected
    assert "restarting" not in err


def test_torchrun_restarts_a_killed_rank_and_the_losses_are_the_same(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    beats, metrics = tmp_path / "beats", tmp_path / "metrics.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    files = ("--metrics", str(metrics), "--heartbeats", str(beats), "--set", f"saving.folder={tmp_path / 'saved'}")
    process = start([*torchrun, "-m", "trimaran.engine", *TINY, *files, "--restarts", "1"], ONE_THREAD)
    kill_at(process, 9, beats)
    _, err = finish(process)
    assert process.returncode == 0, err
    assert loss_by_iteration(metrics) == pytest.approx(undisturbed, rel=1e-5)


@pytest.mark.parametrize(
    ("started", "sentence"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "give torchrun --max-restarts 2",
        ),
        (
            {
                "SLURM_JOB_ID": "1",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NODELIST": "localhost",
            },
            "without srun",
        ),
    ],
)
def test_ranks_that_cannot_restart_each_other_say_who_can(
    started: dict[str, str], sentence: str, trimaran: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(os.environ) - set(ENVIRONMENT):
        monkeypatch.delenv(name)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    ran = trimaran("train", "tiny", "--restarts", "2")
    assert ran.code == 2
    assert sentence in ran.err


@given(allowed=st.integers(0, 5), saves=st.lists(st.integers(0, 3), max_size=40))
def test_only_restarts_without_a_newer_checkpoint_are_limited(allowed: int, saves: list[int]) -> None:
    """`saves`: how many checkpoints each attempt wrote before it failed."""
    restarts: Restarts | None = Restarts(allowed)
    idle = iteration = 0
    for written in saves:
        iteration += written
        idle = 0 if written else idle
        assert restarts is not None
        restarts = restarts.next(iteration)
        assert (restarts is None) == (idle == allowed)
        if restarts is None:
            return
        idle += 1
        assert 0 <= restarts.pause_seconds <= 60
