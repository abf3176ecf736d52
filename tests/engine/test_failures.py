"""When a run goes wrong: an exit code that says what, one sentence that says why, and no process left behind."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.engine.commands import (
    ENVIRONMENT,
    ONE_THREAD,
    TRIMARAN,
    finished,
    gone_within,
    rank_pids,
    train,
    until_iteration,
)
from tests.processes import Process, finish, start

ENDLESS = ("--steps", "100000")
SOON = 120.0  # seconds, on a busy machine; a hang would last for the ten minutes that ranks wait for each other


def ended(process: Process) -> tuple[int, list[str]]:
    """Exit code and the lines on stderr."""
    _, err = finish(process)
    return process.returncode, err.splitlines()


@pytest.mark.parametrize("layout", ["layout.dp=2", "layout.pp=2", "layout.tp=2"])
def test_a_killed_rank_ends_the_run_and_is_named(layout: str, tmp_path: Path) -> None:
    process = train("tiny", "--set", layout, *ENDLESS, "--heartbeats", str(tmp_path))
    until_iteration(process, 2)
    pids = rank_pids(tmp_path)
    os.kill(pids[1], signal.SIGKILL)
    assert gone_within(SOON, process.pid)
    code, said = ended(process)
    assert code == 4
    assert said == ["trimaran: Rank 1 was killed by SIGKILL (by hand, or by the kernel when memory ran out)."]
    assert all(gone_within(0, pid) for pid in pids)


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_ranks_end_with_a_parent_that_was_killed(state: str, tmp_path: Path) -> None:
    process = train("tiny", "--set", "layout.dp=2", *ENDLESS, "--heartbeats", str(tmp_path))
    until_iteration(process, 2)
    pids = rank_pids(tmp_path)
    if state == "stopped":
        os.kill(pids[1], signal.SIGSTOP)
    process.kill()
    assert len(pids) == 2
    assert all(gone_within(SOON, pid) for pid in pids)
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_stops_all_ranks_after_the_same_step(number: int, tmp_path: Path) -> None:
    process = train("tiny", "--set", "layout.pp=2", *ENDLESS, "--heartbeats", str(tmp_path))
    until_iteration(process, 3)
    pids = rank_pids(tmp_path)
    process.send_signal(number)
    code, said = ended(process)
    assert code == 5
    assert len(said) == 1
    assert said[0].startswith("trimaran: interrupted after iteration ")
    assert all(gone_within(0, pid) for pid in pids)


def test_nohup_is_respected() -> None:
    """SIGHUP is ignored from the start, and so by the ranks."""
    command = ["nohup", *TRIMARAN, "train", "tiny", "--set", "layout.dp=2", *ENDLESS]
    process = start(command, ONE_THREAD)
    until_iteration(process, 2)
    process.send_signal(signal.SIGHUP)
    until_iteration(process, 5)
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 5
    assert int(said[-1].removeprefix("trimaran: interrupted after iteration ").split()[0]) >= 5


@pytest.mark.parametrize("saves", [True, False])
def test_a_second_signal_says_what_was_done_and_saved(saves: bool, tmp_path: Path) -> None:
    """A stopped rank, so that the others cannot end their step after the first signal."""
    settings = ("--set", f"saving.folder={tmp_path / 'saved'}", "--set", "saving.every=2") if saves else ()
    beats = tmp_path / "beats"
    process = train("tiny", "--set", "layout.dp=2", *settings, *ENDLESS, "--heartbeats", str(beats))
    until_iteration(process, 3)
    os.kill(rank_pids(beats)[0], signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 5
    last = max([3, *(int(line[11:19]) for line in out.splitlines() if line.startswith(" iteration "))])
    (said,) = err.splitlines()
    assert re.match(rf"trimaran: interrupted after iteration ({last}|{last + 1}) of 100000, without saving; ", said)
    newest = max((tmp_path / "saved").glob("step-*"), default=None)
    assert said.endswith(f"the newest checkpoint is {newest}." if saves else "there is no checkpoint.")


def test_out_of_memory_is_an_exit_code_of_its_own() -> None:
    """By ulimit, so that the allocator really fails."""
    large = ("model.ffn_hidden=8192", "layout.micro_batch=512", "batch.size=1024", "layout.dp=2")
    settings = [word for setting in large for word in ("--set", setting)]
    code, _, err = finished("tiny", *settings, limit="-v 4000000")
    assert code == 3
    warning, reason = err.splitlines()
    assert warning == "trimaran: warning: by the prediction this will run out of memory."
    assert "is out of memory: " in reason


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        rank = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        code, _, err = finished("tiny", "--set", "layout.dp=2", environment=rank)
    assert code == 4
    assert len(err.splitlines()) == 1
    assert f"port: {port}" in err


def test_missing_ranks_are_waited_for_no_longer_than_the_patience() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rank = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    code, _, err = finished("tiny", "--set", "layout.dp=2", "--patience", "2", environment=rank)
    assert code == 4
    assert err.startswith("trimaran: Rank 0 timed out waiting for the other ranks:")
    assert len(err.splitlines()) == 1


MISTAKES = {
    "no such job": (["tinny"], {}, "Did you mean 'tiny'?"),
    "no such field": (["tiny", "--set", "layout.tpp=2"], {}, "did you mean layout.tp?"),
    "impossible": (["tiny", "--set", "layout.tp=3"], {}, "heads 4 is not divisible by tp 3."),
    "another machine": (["gpt-1b3-h200"], {}, "but this machine has cpu-"),
    "too large": (["tiny", "--set", "model.hidden=65536"], {}, "GiB on a device for weights, gradients and optimizer"),
    "no folder": (["tiny", "--metrics", "nowhere/m.jsonl"], {}, "nowhere/m.jsonl cannot be written: No such file"),
    "no place to save": (["tiny", "--set", "saving.folder=/dev/null/x"], {}, "cannot be written: Not a directory."),
    "another trainer": (["tiny", "--set", "trainer=megatron-lm"], {}, "is for megatron-lm, but the engine is our own"),
    "unequal world": (
        ["tiny"],
        {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"},
        "3 processes were started, but dp x tp x pp = 1;",
    ),
    "no such host": (
        ["tiny", "--set", "layout.dp=2"],
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "1234"},
        "but this machine cannot resolve that host name; set MASTER_ADDR",
    ),
    "no port": (["tiny"], {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}, "MASTER_PORT is not set"),
}


@pytest.mark.parametrize(("arguments", "environment", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_sentence_before_any_process_starts(
    arguments: list[str],
    environment: dict[str, str],
    sentence: str,
    trimaran: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in set(os.environ) - set(ENVIRONMENT):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = trimaran("train", *arguments)
    assert ran.code == 2
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1


def test_only_rank_0_prints_a_mistake_that_all_ranks_have(trimaran: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}.items():
        monkeypatch.setenv(name, value)
    ran = trimaran("train", "tiny")
    assert (ran.code, ran.err) == (2, "")
