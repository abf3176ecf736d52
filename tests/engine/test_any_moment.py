"""A rank killed, or a signal to the run, at any moment: an exit code, a sentence, and no process left behind."""

import random
import signal
import sys
from pathlib import Path

import pytest

from tests.engine.commands import ONE_THREAD, TRIMARAN
from tests.processes import Process, finish, start, until
from trimaran.lab.trial_processes import MARK, processes_of

# The command, whose second rank has an alarm from its birth on, or is killed in it.
FATED = """
import os, signal, sys
forks = 0
def count():
    global forks
    forks += 1
def befall():
    if forks == 2 and delay == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if forks == 2:
        signal.setitimer(signal.ITIMER_REAL, delay)  # SIGALRM ends a process
os.register_at_fork(before=count, after_in_child=befall)
delay = float(sys.argv.pop(1))
from trimaran.cli.main import run
run()
"""
TRAIN = ("train", "tiny", "--set", "layout.dp=2", "--steps", "100000")
COMMANDS = {"train": TRAIN, "probe": ("probe", "--quick", "--ranks", "2")}
MOMENTS = random.Random(22)


def marked(command: list[str], name: Path) -> Process:
    return start(command, {**ONE_THREAD, MARK: str(name), "TMPDIR": str(name)})


def left_behind(name: Path) -> list[object]:
    return [*processes_of(str(name)), *name.glob("trimaran-*")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_rank_killed_at_its_birth_ends_the_run(command: str, tmp_path: Path) -> None:
    process = marked([sys.executable, "-c", FATED, "0", *COMMANDS[command]], tmp_path)
    _, err = finish(process)
    assert process.returncode == 4
    assert err == "trimaran: Rank 1 was killed by SIGKILL (by hand, or by the kernel when memory ran out).\n"
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("seconds", [0.001, 0.005, *(MOMENTS.uniform(0.0, 1.0) for _ in range(2))])
def test_a_rank_killed_at_any_moment_ends_the_run(seconds: float, tmp_path: Path) -> None:
    process = marked([sys.executable, "-c", FATED, str(seconds), *TRAIN], tmp_path)
    _, err = finish(process)
    assert process.returncode == 4
    assert err == "trimaran: Rank 1 was killed by SIGALRM.\n"
    assert left_behind(tmp_path) == []


def catches_signals(process: Process) -> bool:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)


SIGNALS = [(0.0, "TERM"), *((MOMENTS.uniform(0.0, 3.0), MOMENTS.choice(["INT", "TERM", "HUP"])) for _ in range(2))]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("seconds", "name"), SIGNALS)
def test_a_signal_at_any_moment_ends_the_run(command: str, seconds: float, name: str, tmp_path: Path) -> None:
    """From the first on at which Python lets a command catch it."""
    process = marked([*TRIMARAN, *COMMANDS[command]], tmp_path)
    until(lambda: catches_signals(process), "the command's start")
    sent = start(["sh", "-c", f"sleep {seconds}; kill -{name} {process.pid}"], ONE_THREAD)
    _, err = finish(process)
    finish(sent)
    assert process.returncode == {"train": 5, "probe": 130}[command]
    assert err.startswith("trimaran: interrupted")
    assert len(err.splitlines()) == 1
    assert left_behind(tmp_path) == []
