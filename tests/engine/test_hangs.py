"""A rank that is stopped by a signal: the run ends after its timeout, and says which rank it is and who waits where."""

import os
import re
import signal
import socket
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from tests.engine.commands import ONE_THREAD, gone_within, rank_pids, train, until_iteration
from tests.engine.pool import Pool
from tests.processes import Process, finish, start
from trimaran.engine.parallel.world import build_world
from trimaran.spec import Layout

ENDLESS = ("--steps", "100000", "--patience", "5")
STOPPED = r"rank {rank} is stopped by a signal \(iteration \d+, \w+\)"
PLACE = r"\w+ in \w+ \(\w+\.py:\d+\)"  # all_reduce in norm_and_sums (gradients.py:34)


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_a_stopped_rank_of_two_axes_is_named_with_where_the_others_wait(tmp_path: Path) -> None:
    """Their groups are no default groups, whose timeout alone init_process_group sets."""
    layout, stopped = settings("layout.tp=2", "layout.pp=2"), 3
    process = train("tiny", *layout, *ENDLESS, environment={"TMPDIR": str(tmp_path)})
    until_iteration(process, 2)
    (folder,) = tmp_path.glob("trimaran-*")
    pids = rank_pids(folder)
    os.kill(pids[stopped], signal.SIGSTOP)
    _, err = finish(process)
    assert process.returncode == 4
    (said,) = err.splitlines()
    wait = rf"ranks? (\d(?:, \d)*) in {PLACE}"
    found = re.fullmatch(
        rf"trimaran: It hangs: {STOPPED.format(rank=stopped)}; the others wait for it: ((?:{wait}(?:; )?)+)\."
        rf" Ended after a timeout of 5 s; the stacks of the ranks are in {folder}\.",
        said,
    )
    assert found
    waiting = {int(rank) for ranks in re.findall(wait, found[1]) for rank in ranks.split(", ")}
    assert waiting == {0, 1, 2, 3} - {stopped}
    assert all("train_loop" in (folder / f"rank-{rank:05d}.stack").read_text() for rank in waiting)
    assert all(gone_within(0, pid) for pid in pids)


def test_nothing_is_left_of_a_good_run(tmp_path: Path) -> None:
    process = train("tiny", "--steps", "1", environment={"TMPDIR": str(tmp_path)})
    finish(process)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def join(rank: int, port: int, *arguments: str) -> Process:
    """As torchrun or srun would start it."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = ["tiny", *settings("layout.dp=2"), *ENDLESS, *arguments]
    return start([sys.executable, "-m", "trimaran.engine", *words], {**ONE_THREAD, **place})


@pytest.mark.parametrize("stopped", [0, 1])  # rank 0 has the store
def test_a_rank_of_torchrun_says_what_it_waited_in_and_for_whom(stopped: int, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [join(rank, port, "--heartbeats", str(tmp_path)) for rank in range(2)]
    until_iteration(ranks[1], 2)
    ranks[stopped].send_signal(signal.SIGSTOP)
    other = ranks[1 - stopped]
    _, err = finish(other)
    assert other.returncode == 4
    assert re.fullmatch(
        rf"trimaran: Rank {1 - stopped} timed out waiting for the other ranks in {PLACE}:"
        r" Timed out waiting 5000ms for \w+ operation to complete\."
        r" One of them is stopped, stuck, or slower than the timeout\."
        rf" It hangs: {STOPPED.format(rank=stopped)}; the others wait for it: rank {1 - stopped} in {PLACE}\.\n",
        err,
    )


def test_a_single_rank_that_is_stopped_is_named_and_not_those_of_an_earlier_run(tmp_path: Path) -> None:
    """Nor are they signalled: SIGUSR2, which requests a stack, would end a process that now has the pid of one."""
    bystander = start(["sleep", "1000"], ONE_THREAD)
    beat = f'{{"rank": 7, "pid": {bystander.pid}, "host": "{socket.gethostname()}", "doing": "stepping", "iteration": 9'
    (tmp_path / "rank-00007.json").write_text(beat + ', "time": 1}')
    (tmp_path / "rank-00007.stack").touch()
    process = train("tiny", *ENDLESS, "--heartbeats", str(tmp_path))
    until_iteration(process, 2)
    os.kill(rank_pids(tmp_path)[0], signal.SIGSTOP)
    _, err = finish(process)
    assert process.returncode == 4
    assert re.match(rf"trimaran: It hangs: {STOPPED.format(rank=0)}\. Ended", err)
    assert not gone_within(0, bystander.pid)


def timeouts(rank: int, layout: Layout, timeout: timedelta) -> set[timedelta]:
    world = build_world(layout, True, torch.device("cpu"), rank, timeout)
    groups = [world.group("pp"), world.group("dp"), world.group("tp"), world.tied_group]
    return {group._get_backend(world.device).options._timeout for group in groups if group.size() < 8}


def test_every_group_of_the_mesh_has_the_timeout(pool: Pool) -> None:
    timeout = timedelta(seconds=1234)
    assert pool.run(8, timeouts, Layout(dp=2, tp=2, pp=2), timeout) == [{timeout}] * 8
