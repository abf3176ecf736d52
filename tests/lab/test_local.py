"""Sweeps on this machine, and everything that can happen to them, done to them for real."""

import json
import os
import shutil
import signal
import statistics
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.lab.sweeps import (
    MEGATRON,
    finished,
    left_running,
    rows,
    start,
    stepping,
    sweep_file,
    swept,
    trial_folder,
    until,
)
from trimaran.lab.files import read_json, read_lines
from trimaran.spec import presets

LONG = {"iterations": 2000, "least": 1999}
TWO_RANKS = {"layout.dp": [2]}


def test_what_a_sweep_measured_is_what_its_trainers_wrote(tmp_path: Path) -> None:
    sweep_file(tmp_path, axes={"layout.micro_batch": [4, 8], "environment.TRIMARAN_SEEN": ["yes"]})
    told = swept(tmp_path, "s.yaml")
    assert told["counts"] == {"ok": 2}
    kept = {trial.id: trial for trial in rows(tmp_path)}
    assert len(kept) == 2
    for number, trial in enumerate(told["trials"], start=1):
        folder = trial_folder(tmp_path, number)
        seconds = [r["seconds"] for r in read_lines(folder / "metrics.jsonl") if not r["warm_up"]]
        assert len(seconds) == 4
        assert trial["seconds"] == statistics.median(seconds)
        assert trial["seconds_low"] <= trial["seconds"] <= trial["seconds_high"]
        assert kept[trial["id"]].outcome.seconds == trial["seconds"]
        assert (read_json(folder / "environment.json") or {})["TRIMARAN_SEEN"] == "yes"
        assert {"job.yaml", "stdout", "stderr"} <= {file.name for file in folder.iterdir()}
    predicted = [trial["predicted"] for trial in told["trials"]]
    assert predicted == sorted(predicted)  # the fastest first
    assert told["best"] == min(told["trials"], key=lambda trial: trial["seconds"])["id"]


def test_a_killed_rank_ends_its_trial_at_once_and_is_named(tmp_path: Path) -> None:
    sweep_file(tmp_path, axes=TWO_RANKS, measuring=LONG)
    harness = start(tmp_path, "s.yaml", "--json")
    pid = stepping(tmp_path, rank=1)
    (row,) = rows(tmp_path)
    assert row.outcome.status == "running"  # in the ledger before it ends
    os.kill(pid, signal.SIGKILL)
    told = json.loads(harness.communicate()[0])
    (trial,) = told["trials"]
    assert trial["status"] == "fail"
    assert "Rank 1 was killed by SIGKILL" in trial["reason"]
    assert left_running(tmp_path) == []


def test_a_stopped_rank_is_a_hang_and_named_with_where_the_others_wait(tmp_path: Path) -> None:
    measuring = {**LONG, "silence_seconds": 2.0, "silence_times": 3}
    sweep_file(tmp_path, axes=TWO_RANKS, measuring=measuring)
    harness = start(tmp_path, "s.yaml", "--json")
    os.kill(stepping(tmp_path, rank=1), signal.SIGSTOP)
    (trial,) = json.loads(harness.communicate()[0])["trials"]
    assert trial["status"] == "hang"
    assert "rank 1 is stopped by a signal" in trial["reason"]
    assert "rank 0 in " in trial["reason"]
    evidence = (read_json(trial_folder(tmp_path) / "result.json") or {})["evidence"]["ranks"]
    assert "in step\n" in evidence[0]["stack"]  # Trainer.step
    assert left_running(tmp_path) == []


def test_a_rank_without_memory_is_an_oom_and_a_wrong_job_a_sentence(tmp_path: Path) -> None:
    alternatives = [{"model.hidden": 4096, "model.vocab": 50304}, {"data.source": "nowhere"}]
    sweep_file(tmp_path, alternatives=alternatives, place={"memory_gib": 1.5})
    told = swept(tmp_path, "s.yaml")
    by_label = {trial["label"]: trial for trial in told["trials"]}
    large, wrong = by_label["hidden 4096, vocab 50304"], by_label["source nowhere"]
    assert (large["status"], wrong["status"]) == ("oom", "fail")
    assert "out of memory" in large["reason"]
    assert "nowhere" in wrong["reason"]


@pytest.mark.parametrize("victims", ["harness", "harness and supervisor"])
def test_after_kill_9_another_harness_goes_on_and_nothing_is_lost_or_done_twice(tmp_path: Path, victims: str) -> None:
    sweep_file(tmp_path, axes={"layout.micro_batch": [1, 2, 4]}, measuring={"iterations": 8, "least": 8})
    harness = start(tmp_path, "s.yaml")
    stepping(tmp_path, number=2)
    first = (trial_folder(tmp_path, 1) / "metrics.jsonl").stat().st_mtime_ns
    harness.kill()
    harness.communicate()
    supervisor = (read_json(trial_folder(tmp_path, 2) / "started.json") or {})["supervisor"]
    if victims != "harness":
        os.kill(supervisor, signal.SIGKILL)
    told = swept(tmp_path, "s.yaml", "--resume")
    assert (trial_folder(tmp_path, 1) / "metrics.jsonl").stat().st_mtime_ns == first
    last = {Path(trial.source.file).name: trial.outcome.status for trial in rows(tmp_path)}
    again = trial_folder(tmp_path, 2).with_name("0002.2")
    if victims == "harness":  # it is adopted
        assert last == {"0001": "ok", "0002": "ok", "0003": "ok"}
        assert (read_json(trial_folder(tmp_path, 2) / "started.json") or {})["supervisor"] == supervisor
        assert not again.exists()
    else:
        assert last == {"0001": "ok", "0002": "lost", "0002.2": "ok", "0003": "ok"}
    assert told["left"] == 0
    assert left_running(tmp_path) == []


def test_a_second_harness_is_refused_and_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    sweep_file(tmp_path, axes={"layout.micro_batch": [1, 2]}, measuring=LONG)
    harness = start(tmp_path, "s.yaml")
    stepping(tmp_path)
    code, _, err = finished(tmp_path, "s.yaml", "--resume")
    assert code == 2
    assert f"is being run by process {harness.pid}" in err
    code, _, err = finished(tmp_path, "s.yaml")
    assert code == 2
    assert "--resume goes on with it" in err
    harness.send_signal(signal.SIGINT)
    assert harness.stdout is not None
    assert any("Ctrl-C again: now" in line for line in harness.stdout)
    harness.send_signal(signal.SIGINT)
    harness.communicate(timeout=60)
    assert harness.returncode == 5
    assert [trial.outcome.status for trial in rows(tmp_path)] == ["cancelled"]
    assert left_running(tmp_path) == []


def test_ctrl_c_once_lets_the_running_trial_end(tmp_path: Path) -> None:
    sweep_file(tmp_path, axes={"layout.micro_batch": [1, 2]}, measuring={"iterations": 12, "least": 12})
    harness = start(tmp_path, "s.yaml")
    stepping(tmp_path)
    harness.send_signal(signal.SIGINT)
    harness.communicate(timeout=60)
    assert harness.returncode == 5
    assert [trial.outcome.status for trial in rows(tmp_path)] == ["ok"]
    told = swept(tmp_path, "s.yaml", "--resume")
    assert [trial["status"] for trial in told["trials"]] == ["ok", "ok"]


def test_another_trainer_runs_by_its_command_and_its_log_is_read(tmp_path: Path) -> None:
    sweep_file(tmp_path, command=MEGATRON, axes={"batch.size": [16, 32]})
    told = swept(tmp_path, "s.yaml")
    assert [trial["status"] for trial in told["trials"]] == ["ok", "ok"]
    assert [trial["seconds"] for trial in told["trials"]] == [0.25, 0.25]
    assert "hidden_size ..................................... 128" in (trial_folder(tmp_path) / "stdout").read_text()


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        ("sleep 1000", "timeout", "limit"),
        ("trap '' TERM; sleep 1000 & wait", "timeout", "limit"),
        ("echo 'CUDA error: out of memory' >&2; exit 1", "oom", "out of memory"),
        ("echo RuntimeError: boom >&2; exit 7", "fail", "boom"),
        ("kill -9 $$", "fail", "exit code -9"),
        ("exit 0", "fail", "measured no iteration"),
    ],
)
def test_every_end_of_another_trainer_is_one_outcome(tmp_path: Path, command: str, status: str, reason: str) -> None:
    sweep_file(tmp_path, command=command, measuring={"minutes": 0.02})
    (trial,) = swept(tmp_path, "s.yaml")["trials"]
    assert trial["status"] == status
    assert reason in trial["reason"]
    assert left_running(tmp_path) == []


def test_a_trainer_that_falls_silent_hangs_and_its_orphans_are_ended(tmp_path: Path) -> None:
    """Workers in sessions of their own, as torchrun's are."""
    sweep_file(tmp_path, command="setsid sleep 1000 & sleep 1000", measuring={"silence_minutes": 0.02})
    (trial,) = swept(tmp_path, "s.yaml")["trials"]
    assert trial["status"] == "hang"
    assert left_running(tmp_path) == []


def test_the_budget_and_being_sure_end_a_sweep_early(tmp_path: Path) -> None:
    sweep_file(tmp_path, command=MEGATRON, axes={"layout.micro_batch": [1, 2, 4]})
    told = swept(tmp_path, "s.yaml", "--budget", "1")
    assert (len(told["trials"]), told["left"]) == (1, 2)
    assert "1 trials is spent" in told["ended"]
    # A trial that took a millisecond cannot be beaten by layouts that are predicted to take half a second.
    shutil.rmtree(tmp_path / "sweeps")
    sweep_file(tmp_path, command=MEGATRON.replace("250.0", "0.001"), axes={"layout.micro_batch": [1, 2, 4]})
    told = swept(tmp_path, "s.yaml", "--stop-when-sure")
    assert (len(told["trials"]), told["left"]) == (1, 2)
    assert "No untried layout can beat" in told["ended"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_under_the_trials_is_an_outcome(tmp_path: Path) -> None:
    sweep_file(tmp_path, axes={"layout.micro_batch": [1, 2]})
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        told = swept(tmp_path, "s.yaml", "--folder", "disk/s")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert [trial["status"] for trial in told["trials"]] == ["fail", "fail"]
    assert all("No space left on device" in trial["reason"] for trial in told["trials"])
    assert left_running(tmp_path) == []


def test_a_wrong_sweep_is_a_sentence(tmp_path: Path) -> None:
    for values, words in [
        ({"axes": {"layout.tpp": [1]}}, "There is no layout.tpp in a Job"),
        ({"axes": {"layout.tp": []}}, "has no values"),
        ({"axes": {"layout.tp": [3]}}, "No layout of the sweep s is possible"),
        ({"command": "train {cpus}"}, "It could not be started"),
        ({"base": "tini"}, "Did you mean 'tiny'?"),
        ({"place": {"kind": "allocation"}}, "SLURM_JOB_ID is not set"),
    ]:
        shutil.rmtree(tmp_path / "sweeps", ignore_errors=True)
        sweep_file(tmp_path, **values)
        code, out, err = finished(tmp_path, "s.yaml")
        assert "Traceback" not in err
        assert words in out + err
        assert code == (0 if "command" in values else 2)


def test_the_planners_best_are_swept(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("{layers: 2, hidden: 64, heads: 2, vocab: 128, seq_len: 32, ffn_hidden: 128}")
    told = swept(tmp_path, "m.yaml", "--plan", "--on", "here", "--gbs", "8", "--top", "2")
    assert [trial["status"] for trial in told["trials"]] == ["ok", "ok"]
    until(lambda: not left_running(tmp_path), "the end of all processes")


def test_trials_side_by_side_have_cores_of_their_own_and_no_time_starts_none(tmp_path: Path) -> None:
    command = f"{MEGATRON}; grep Cpus_allowed_list /proc/self/status; sleep 1"
    place = {"parallel": 2, "pin": True}
    sweep_file(tmp_path, command=command, axes={"seed": [1, 2]}, place=place)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be divided")
    assert swept(tmp_path, "s.yaml", "--minutes", "0")["left"] == 2
    assert swept(tmp_path, "s.yaml", "--resume")["counts"] == {"ok": 2}
    cores = [(trial_folder(tmp_path, number) / "stdout").read_text().split()[-1] for number in (1, 2)]
    assert cores[0] != cores[1]


def test_trials_share_no_checkpoints(tmp_path: Path) -> None:
    saving = {"folder": str(tmp_path / "saved"), "every": 1}
    base = {**yaml.safe_load(presets.text(presets.JOBS, "tiny")), "saving": saving}
    sweep_file(tmp_path, base=base, axes={"seed": [1, 2]})
    assert swept(tmp_path, "s.yaml")["counts"] == {"ok": 2}
    assert not (tmp_path / "saved").exists()
