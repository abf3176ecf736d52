"""Sweeps on this machine, and everything that can happen to them, done to them for real."""

import os
import shutil
import signal
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Command
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
    trials_of,
    until_started,
    waiting_for,
)
from tests.processes import end, finish, until
from trimaran.lab.files import read_json, read_lines
from trimaran.lab.outcome import status_of
from trimaran.ledger.logs import read_megatron
from trimaran.spec import presets

LONG = {"iterations": 2000, "least": 1999}
TWO_RANKS = {"layout.dp": [2]}


def test_what_a_sweep_measured_is_what_its_trainers_wrote(tmp_path: Path) -> None:
    saving = {"folder": str(tmp_path / "saved"), "every": 1}
    base = {**yaml.safe_load(presets.text(presets.JOBS, "tiny")), "saving": saving}
    sweep_file(tmp_path, base=base, axes={"layout.micro_batch": [4, 8], "environment.TRIMARAN_SEEN": ["yes"]})
    summary = swept(tmp_path, "s.yaml")
    assert summary["counts"] == {"ok": 2}
    assert not (tmp_path / "saved").exists()  # trials save no checkpoints, and so cannot resume from each other's
    recorded = {trial.id: trial for trial in rows(tmp_path)}
    assert len(recorded) == 2
    for number, trial in enumerate(summary["trials"], start=1):
        folder = trial_folder(tmp_path, number)
        seconds = [r["seconds"] for r in read_lines(folder / "metrics.jsonl") if not r["warm_up"]]
        assert len(seconds) == 4
        assert trial["seconds"] == statistics.median(seconds)
        assert trial["seconds_low"] <= trial["seconds"] <= trial["seconds_high"]
        assert recorded[trial["id"]].outcome.seconds == trial["seconds"]
        assert (read_json(folder / "environment.json") or {})["TRIMARAN_SEEN"] == "yes"
        assert {"job.yaml", "stdout", "stderr"} <= {file.name for file in folder.iterdir()}
    predicted = [trial["predicted"] for trial in summary["trials"]]
    assert predicted == sorted(predicted)  # the fastest first
    assert summary["best"] == min(summary["trials"], key=lambda trial: trial["seconds"])["id"]


def test_a_killed_rank_ends_its_trial_at_once_and_is_named(tmp_path: Path) -> None:
    sweep_file(tmp_path, axes=TWO_RANKS, measuring=LONG)
    harness = start(tmp_path, "s.yaml", "--json")
    pid = stepping(tmp_path, rank=1)
    (row,) = rows(tmp_path)
    assert row.outcome.status == "running"  # in the ledger before it ends
    os.kill(pid, signal.SIGKILL)
    (trial,) = trials_of(harness)
    assert trial["status"] == "fail"
    assert "Rank 1 was killed by SIGKILL" in trial["reason"]
    assert left_running(tmp_path) == []


def test_a_stopped_rank_is_a_hang_and_named_with_where_the_others_wait(tmp_path: Path) -> None:
    measuring = {**LONG, "silence_seconds": 6.0, "silence_times": 3}
    sweep_file(tmp_path, axes=TWO_RANKS, measuring=measuring)
    harness = start(tmp_path, "s.yaml", "--json")
    os.kill(stepping(tmp_path, rank=1), signal.SIGSTOP)
    (trial,) = trials_of(harness)
    assert trial["status"] == "hang"
    assert "rank 1 is stopped by a signal" in trial["reason"]
    assert "rank 0 in " in trial["reason"]
    evidence = (read_json(trial_folder(tmp_path) / "result.json") or {})["evidence"]["ranks"]
    assert "in step\n" in evidence[0]["stack"]  # Trainer.step
    assert left_running(tmp_path) == []


def test_a_rank_that_runs_out_of_memory_is_an_oom_and_a_bad_job_a_sentence(tmp_path: Path) -> None:
    alternatives = [{"model.hidden": 4096, "model.vocab": 50304}, {"data.source": "nowhere"}]
    sweep_file(tmp_path, alternatives=alternatives, place={"memory_gib": 1.5})
    by_label = {trial["label"]: trial for trial in swept(tmp_path, "s.yaml")["trials"]}
    large, wrong = by_label["hidden 4096, vocab 50304"], by_label["source nowhere"]
    assert (large["status"], wrong["status"]) == ("oom", "fail")
    assert "out of memory" in large["reason"]
    assert "nowhere" in wrong["reason"]


@pytest.mark.parametrize("victims", ["harness", "harness and supervisor"])
def test_after_kill_9_another_harness_resumes_and_nothing_is_lost_or_run_twice(tmp_path: Path, victims: str) -> None:
    go = tmp_path / "go"
    command = f"case {{folder}} in */0002) {waiting_for(go)};; esac; {MEGATRON}"
    sweep_file(tmp_path, command=command, axes={"layout.micro_batch": [1, 2, 4]})
    harness = start(tmp_path, "s.yaml")
    second = until_started(tmp_path, 2)
    first = (trial_folder(tmp_path, 1) / "stdout").stat().st_mtime_ns
    end(harness)
    supervisor = (read_json(second / "started.json") or {})["supervisor"]
    if victims != "harness":
        os.kill(supervisor, signal.SIGKILL)
    resumed = start(tmp_path, "s.yaml", "--resume", "--json")
    if victims == "harness":
        go.touch()
    assert {trial["status"] for trial in trials_of(resumed)} <= {"ok", "lost"}
    assert (trial_folder(tmp_path, 1) / "stdout").stat().st_mtime_ns == first
    statuses = {Path(trial.source.file).name: trial.outcome.status for trial in rows(tmp_path)}
    if victims == "harness":  # the running trial is adopted
        assert statuses == {"0001": "ok", "0002": "ok", "0003": "ok"}
        assert (read_json(second / "started.json") or {})["supervisor"] == supervisor
    else:  # the trainer dies with its supervisor, and the trial is attempted again
        assert statuses == {"0001": "ok", "0002": "lost", "0002.2": "ok", "0003": "ok"}
    assert left_running(tmp_path) == []


def test_a_second_harness_is_refused_and_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    sweep_file(tmp_path, command="sleep 1000", axes={"layout.micro_batch": [1, 2]})
    harness = start(tmp_path, "s.yaml")
    until_started(tmp_path)
    code, _, err = finished(tmp_path, "s.yaml", "--resume")
    assert code == 2
    assert f"is being run by process {harness.pid}" in err
    code, _, err = finished(tmp_path, "s.yaml")
    assert code == 2
    assert "--resume resumes it" in err
    harness.send_signal(signal.SIGINT)
    assert harness.stdout is not None
    assert any("Ctrl-C again: now" in line for line in harness.stdout)
    harness.send_signal(signal.SIGINT)
    finish(harness)
    assert harness.returncode == 5
    assert [trial.outcome.status for trial in rows(tmp_path)] == ["cancelled"]
    assert left_running(tmp_path) == []


def test_ctrl_c_once_lets_the_running_trial_end(tmp_path: Path) -> None:
    go = tmp_path / "go"
    sweep_file(tmp_path, command=f"{waiting_for(go)}; {MEGATRON}", axes={"layout.micro_batch": [1, 2]})
    harness = start(tmp_path, "s.yaml")
    until_started(tmp_path)
    harness.send_signal(signal.SIGINT)
    assert harness.stdout is not None
    assert any("Ctrl-C again: now" in line for line in harness.stdout)
    go.touch()
    finish(harness)
    assert harness.returncode == 5
    assert [trial.outcome.status for trial in rows(tmp_path)] == ["ok"]
    assert [trial["status"] for trial in swept(tmp_path, "s.yaml", "--resume")["trials"]] == ["ok", "ok"]


def test_a_reader_that_ends_with_ctrl_c_does_not_end_the_sweep(tmp_path: Path) -> None:
    """As the `tee` of `trimaran sweep … | tee` does."""
    go = tmp_path / "go"
    sweep_file(tmp_path, command=f"{waiting_for(go)}; {MEGATRON}", axes={"layout.micro_batch": [1, 2]})
    harness = start(tmp_path, "s.yaml")
    until_started(tmp_path)
    assert harness.stdout is not None
    assert harness.stderr is not None
    harness.stdout.close()
    harness.send_signal(signal.SIGINT)
    go.touch()
    said = harness.stderr.read()
    assert harness.wait() == 5
    assert "You stopped it. 1 ok; 1 not tried." in said
    assert [trial.outcome.status for trial in rows(tmp_path)] == ["ok"]


def test_another_trainer_runs_by_its_command_and_its_log_is_read(tmp_path: Path) -> None:
    sweep_file(tmp_path, command=MEGATRON, axes={"batch.size": [16, 32]})
    trials = swept(tmp_path, "s.yaml")["trials"]
    assert [trial["status"] for trial in trials] == ["ok", "ok"]
    assert [trial["seconds"] for trial in trials] == [0.25, 0.25]
    assert "hidden_size ..................................... 128" in (trial_folder(tmp_path) / "stdout").read_text()


ENDS = {
    1: ("echo 'CUDA error: out of memory' >&2; exit 1", "oom", "out of memory"),
    2: ("echo RuntimeError: boom >&2; exit 7", "fail", "boom"),
    3: ("kill -9 $$", "fail", "exit code -9"),
    4: ("exit 0", "fail", "measured no iteration"),
}
SLOW_ENDS = {
    1: ("sleep 1000", "timeout", "limit"),
    2: ("trap '' TERM; sleep 1000 & wait", "timeout", "limit"),
}


@pytest.mark.parametrize(("ends", "minutes"), [(ENDS, 10), (SLOW_ENDS, 0.02)], ids=["by itself", "at its limit"])
def test_every_end_of_another_trainer_is_one_outcome(
    tmp_path: Path, ends: dict[int, tuple[str, str, str]], minutes: float
) -> None:
    command = f"case {{seed}} in {' '.join(f'{seed}) {shell};;' for seed, (shell, _, _) in ends.items())} esac"
    sweep_file(
        tmp_path, command=command, axes={"seed": list(ends)}, measuring={"minutes": minutes}, place={"parallel": 2}
    )
    trials = {trial["label"]: trial for trial in swept(tmp_path, "s.yaml")["trials"]}
    for seed, (_, status, reason) in ends.items():
        assert trials[f"seed {seed}"]["status"] == status
        assert reason in trials[f"seed {seed}"]["reason"]
    assert left_running(tmp_path) == []


OUT_OF_MEMORY = {
    "PyTorch": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 25.10 GiB. GPU 0 has 39.4 GiB.",
    "PyTorch 1": "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 31.75 GiB total capacity)",
    "PyTorch, asynchronous": "RuntimeError: CUDA error: out of memory",
    "PyTorch on AMD": "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
    "PyTorch on CPU": "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate"
    " memory: you tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "NCCL": "r7i1n3:7711:8002 [3] enqueue.cc:102 NCCL WARN Cuda failure 2 'out of memory'",
    "Python": "MemoryError",
    "NumPy": "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array",
    "fork": "OSError: [Errno 12] Cannot allocate memory",
    "DeepSpeed": "[rank0]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.56 GiB.",
    "kernel": "[81234.567] Out of memory: Killed process 4711 (python) total-vm:210442344kB",
    "SLURM": "slurmstepd: error: Detected 1 oom_kill event in StepId=17109804.0. Some tasks were OOM Killed.",
    "SLURM, older": "slurmstepd: error: Detected 1 oom-kill event(s) in step 42.0 cgroup.",
    "SLURM's task": "srun: error: r7i1n3: task 0: Out Of Memory",
    "SLURM's limit": "slurmstepd: error: Job 42 exceeded memory limit (12312 > 8192), being killed",
    "ours": "trimaran: Rank 3 is out of memory: DefaultCPUAllocator refused 12 bytes.",
}


@pytest.mark.parametrize("message", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_a_message_about_memory_is_an_oom_in_a_trial_and_in_an_imported_log(tmp_path: Path, message: str) -> None:
    """Also before the errors of the other ranks, which follow from it."""
    after = ["RuntimeError: NCCL communicator was aborted on rank 5."] * 8
    (tmp_path / "stderr").write_text("\n".join([message, *after]))
    result: dict[str, Any] = {"how": "exit", "code": 1, "reason": "", "kernel_oom_kills": 0}
    status, reason = status_of(result, {}, tmp_path, ours=False)
    assert (status, reason) == ("oom", message.removeprefix("trimaran: "))
    dump = ["----- arguments -----\n", "  hidden_size ........ 512\n"]
    (trial,) = read_megatron([*dump, message + "\n", *(line + "\n" for line in after)], "train.log").trials
    assert trial.outcome.status == "oom"


def test_a_trainer_without_output_is_a_hang_and_its_orphans_are_killed(tmp_path: Path) -> None:
    """Workers in sessions of their own, as torchrun's are."""
    sweep_file(tmp_path, command="setsid sleep 1000 & sleep 1000", measuring={"silence_minutes": 0.02})
    (trial,) = swept(tmp_path, "s.yaml")["trials"]
    assert trial["status"] == "hang"
    assert left_running(tmp_path) == []


def test_a_budget_or_a_sure_best_ends_a_sweep_early(tmp_path: Path) -> None:
    sweep_file(tmp_path, command=MEGATRON, axes={"layout.micro_batch": [1, 2, 4]})
    summary = swept(tmp_path, "s.yaml", "--budget", "1")
    assert (len(summary["trials"]), summary["left"]) == (1, 2)
    assert "1 trials is spent" in summary["ended"]
    # A trial that took a millisecond cannot be beaten by layouts that are predicted to take half a second.
    shutil.rmtree(tmp_path / "sweeps")
    sweep_file(tmp_path, command=MEGATRON.replace("250.0", "0.001"), axes={"layout.micro_batch": [1, 2, 4]})
    summary = swept(tmp_path, "s.yaml", "--stop-when-sure")
    assert (len(summary["trials"]), summary["left"]) == (1, 2)
    assert "No untried layout can beat" in summary["ended"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_under_the_trials_is_an_outcome(tmp_path: Path) -> None:
    sweep_file(tmp_path, command="yes | head -c 200000", axes={"layout.micro_batch": [1, 2]})
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        trials = swept(tmp_path, "s.yaml", "--folder", "disk/s")["trials"]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert [trial["status"] for trial in trials] == ["fail", "fail"]
    assert all("No space left on device" in trial["reason"] for trial in trials)
    assert left_running(tmp_path) == []


def test_a_wrong_sweep_is_a_sentence(tmp_path: Path, trimaran: Command) -> None:
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
        ran = trimaran("sweep", "s.yaml")
        assert words in ran.out + ran.err
        assert ran.code == (0 if "command" in values else 2)


def test_the_planners_best_are_swept(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("{layers: 2, hidden: 64, heads: 2, vocab: 128, seq_len: 32, ffn_hidden: 128}")
    planned = ("m.yaml", "--plan", "--on", "here", "--gbs", "8", "--top", "2")
    summary = swept(tmp_path, *planned, "--budget", "1")
    assert (summary["counts"], summary["left"]) == ({"ok": 1}, 1)
    until(lambda: not left_running(tmp_path), "the end of all processes")


def test_parallel_trials_have_disjoint_cores_and_a_spent_budget_starts_none(tmp_path: Path) -> None:
    command = f"{MEGATRON}; grep Cpus_allowed_list /proc/self/status; sleep 1"
    place = {"parallel": 2, "pin": True}
    sweep_file(tmp_path, command=command, axes={"seed": [1, 2]}, place=place)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be divided")
    assert swept(tmp_path, "s.yaml", "--minutes", "0")["left"] == 2
    assert swept(tmp_path, "s.yaml", "--resume")["counts"] == {"ok": 2}
    cores = [(trial_folder(tmp_path, number) / "stdout").read_text().split()[-1] for number in (1, 2)]
    assert cores[0] != cores[1]
