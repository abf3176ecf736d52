"""Sweeps through a real SLURM of four nodes: jobs of their own, steps in an allocation, and what goes wrong there."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.sweeps import (
    MEGATRON,
    rows,
    slurm_sweep,
    start,
    submitted,
    swept,
    trial_folder,
    trials_of,
    until_started,
    waiting_for,
)
from tests.processes import Process, end, until
from tests.slurm.cluster import SlurmCluster
from trimaran.lab.files import read_json

SLEEP = "sleep 600"


@pytest.fixture(scope="module")
def out_of_time(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Trials that SLURM ends at their limit of a minute, checked every half minute: started first, asserted last.
    The second has measured something; so has the third, whose supervisor cannot write a result."""
    folder = tmp_path_factory.mktemp("limit")
    command = f"case {{seed}} in 1) ;; *) {MEGATRON};; esac; {SLEEP}"
    options = ["--time=1", f"--nodelist={slurm.nodes[3]}"]
    slurm_sweep(folder, axes={"layout.dp": [1], "seed": [1, 2, 3]}, command=command, place={"options": options})
    harness = start(folder, "s.yaml", "--json", environment=slurm.environment, keep=True)
    stopped = read_json(until_started(folder, 3) / "started.json") or {}
    os.kill(stopped["supervisor"], signal.SIGSTOP)
    yield harness
    end(harness)


def test_trials_on_two_and_four_nodes_run_in_parallel(
    slurm: SlurmCluster, tmp_path: Path, out_of_time: Process
) -> None:
    slurm_sweep(tmp_path, axes={"layout.dp": [2, 4]}, measuring={"silence_minutes": 5})
    told = swept(tmp_path, "s.yaml", environment=slurm.environment)
    assert {trial["label"]: (trial["status"], trial["reason"]) for trial in told["trials"]} == {
        "dp 2": ("ok", ""),
        "dp 4": ("ok", ""),
    }
    for trial in told["trials"]:
        folder = trial_folder(tmp_path, int(trial["id"][-1]))
        beats = [json.loads(file.read_text()) for file in (folder / "heartbeats").glob("*.json")]
        assert len({beat["host"] for beat in beats}) == int(trial["label"][-1])


def test_trials_share_the_cache_of_compiled_kernels(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Where PyTorch keeps it: in the sweep's folder, which all nodes see, unlike each node's /tmp."""
    keep = 'echo "$TORCHINDUCTOR_CACHE_DIR" >> {folder}/../../../seen; ' + MEGATRON
    slurm_sweep(tmp_path, command=keep, axes={"layout.micro_batch": [1, 2]})
    # PyTorch sets it for itself, and so for all tests after one that compiles something.
    environment = {name: value for name, value in slurm.environment.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    swept(tmp_path, "s.yaml", environment=environment)
    seen = set((tmp_path / "sweeps" / "seen").read_text().split())
    assert seen == {str(tmp_path / "sweeps" / "s" / "compiled")}


def test_a_job_that_can_never_start_is_cancelled_with_the_reason(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm_sweep(tmp_path, command=MEGATRON, place={"options": ["--nodes=9"]})
    (trial,) = swept(tmp_path, "s.yaml", environment=slurm.environment)["trials"]
    assert trial["status"] == "fail"
    assert "more nodes than its partition has" in trial["reason"]
    assert slurm.command("squeue", "-h", "-n", trial["id"]).stdout == ""


def test_a_job_that_is_refused_has_slurms_own_message(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm_sweep(tmp_path, command=MEGATRON, place={"options": ["--partition=nowhere"]})
    (trial,) = swept(tmp_path, "s.yaml", environment=slurm.environment)["trials"]
    assert trial["status"] == "fail"
    assert "invalid partition" in trial["reason"].lower()


def test_what_the_kernel_kills_because_memory_ran_out_is_an_oom(slurm: SlurmCluster, tmp_path: Path) -> None:
    eater = "python3 -c \"len(b'x' * 800_000_000)\""
    slurm_sweep(tmp_path, command=eater, axes={"layout.dp": [1]}, place={"options": ["--mem=200"]})
    (trial,) = swept(tmp_path, "s.yaml", environment=slurm.environment)["trials"]
    assert trial["status"] == "oom"
    assert "The kernel killed a process because memory ran out." in trial["reason"]


def test_a_cancelled_job_is_cancelled(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm_sweep(tmp_path, command=SLEEP)
    harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
    slurm.command("scancel", submitted(tmp_path))
    (trial,) = trials_of(harness)
    assert trial["status"] == "cancelled"


def test_a_trial_on_a_node_that_fails_is_lost_and_tried_again_elsewhere(slurm: SlurmCluster, tmp_path: Path) -> None:
    # The first attempt sleeps until its node fails.
    command = f"case {{folder}} in *.2) {MEGATRON};; *) {SLEEP};; esac"
    place = {"options": [f"--exclude={slurm.nodes[3]}"]}  # where another trial waits for its limit
    slurm_sweep(tmp_path, command=command, axes={"layout.dp": [1]}, place=place)
    harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
    job = submitted(tmp_path)
    node = slurm.command("squeue", "-h", "-j", job, "-o", "%N").stdout.strip()
    slurm.fail_node(node)
    slurm.notice_failure(node)
    try:
        trials = trials_of(harness)
    finally:
        slurm.start_node(node)
    assert [(trial["status"], trial["reason"]) for trial in trials] == [
        ("lost", "A node of the job failed."),
        ("ok", ""),
    ]


def test_a_requeued_job_is_one_trial(slurm: SlurmCluster, tmp_path: Path) -> None:
    again = f'if [ "$SLURM_RESTART_COUNT" = 1 ]; then {MEGATRON}; else {SLEEP}; fi'
    slurm_sweep(tmp_path, command=again, place={"options": ["--requeue"]})
    harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
    slurm.command("scontrol", "requeue", submitted(tmp_path))
    (trial,) = trials_of(harness)
    assert trial["status"] == "ok"


def test_a_controller_that_does_not_answer_is_not_a_job_that_is_gone(slurm: SlurmCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    slurm_sweep(tmp_path, command=f"{waiting_for(go)}; {MEGATRON}")
    harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
    submitted(tmp_path)
    slurm.stop_controller()
    go.touch()  # it ends while nobody can be asked about it
    until(lambda: (trial_folder(tmp_path) / "result.json").exists(), "the result")
    slurm.start_controller()
    (trial,) = trials_of(harness)
    assert trial["status"] == "ok"


def test_a_killed_harness_finds_its_jobs_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    slurm_sweep(
        tmp_path,
        command=f"{waiting_for(go)}; {MEGATRON}",
        axes={"layout.micro_batch": [1, 2]},
    )
    harness = start(tmp_path, "s.yaml", environment=slurm.environment)
    jobs = [submitted(tmp_path, 1), submitted(tmp_path, 2)]
    end(harness)
    (trial_folder(tmp_path, 2) / "submitted.json").unlink()  # as if killed right after sbatch
    second = start(tmp_path, "s.yaml", "--resume", "--json", environment=slurm.environment)
    go.touch()
    assert [trial["status"] for trial in trials_of(second)] == ["ok", "ok"]
    assert len(rows(tmp_path)) == 2
    known = slurm.command("squeue", "-h", "-t", "all", "-o", "%A|%j").stdout
    ids = [line.split("|")[0] for line in known.splitlines() if any(t.id in line for t in rows(tmp_path))]
    assert sorted(ids) == sorted(jobs)  # none was submitted twice


def test_steps_in_an_allocation_share_no_node(slurm: SlurmCluster, allocation: dict[str, str], tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    # The trials on one node wait for each other; those on two nodes cannot run at the same time.
    both = f"touch {started}/$$; until [ $(ls {started} | wc -l) -ge 2 ]; do sleep 0.05; done"
    wait = f"if [ {{dp}} = 1 ]; then {both}; fi"
    slurm_sweep(
        tmp_path,
        command=f"{MEGATRON}; echo nodes $TRIMARAN_NODES from $(date +%s.%N); {wait}; date +%s.%N",
        axes={"layout.dp": [1, 2], "layout.micro_batch": [1, 2]},
        place={"kind": "allocation"},
    )
    told = swept(tmp_path, "s.yaml", environment=allocation)
    assert told["counts"] == {"ok": 4}
    ran = []
    for number in range(1, 5):
        *_, begun, ended = (trial_folder(tmp_path, number) / "stdout").read_text().splitlines()
        ran.append((set(begun.split()[1].split(",")), float(begun.split()[3]), float(ended)))
    assert sorted(len(nodes) for nodes, _, _ in ran) == [1, 1, 2, 2]
    side_by_side = 0
    for i, (nodes, begun, ended) in enumerate(ran):
        for others, their_begin, their_end in ran[i + 1 :]:
            if begun < their_end and their_begin < ended:
                side_by_side += 1
                assert not nodes & others
    assert side_by_side


def test_our_trainer_runs_as_a_step_and_ends_when_it_is_stable(
    slurm: SlurmCluster, allocation: dict[str, str], tmp_path: Path
) -> None:
    measuring = {"iterations": 100_000, "least": 3, "silence_minutes": 5}
    slurm_sweep(tmp_path, axes={"layout.dp": [2]}, place={"kind": "allocation"}, measuring=measuring)
    (trial,) = swept(tmp_path, "s.yaml", environment=allocation)["trials"]
    assert (trial["status"], trial["reason"]) == ("ok", "")
    # Asked to end, the trainer said where: srun did not kill it.
    assert "interrupted after iteration" in (trial_folder(tmp_path) / "stderr").read_text()


def test_a_job_at_its_time_limit_is_a_timeout_unless_something_was_measured(out_of_time: Process) -> None:
    trials = {trial["label"]: trial for trial in trials_of(out_of_time)}
    kept = ("ok", "It reached its limit after 5 measured iterations.")
    assert {label.partition(",")[2]: (trial["status"], trial["reason"]) for label, trial in trials.items()} == {
        " seed 1": ("timeout", "SLURM ended the job at its time limit."),
        " seed 2": kept,
        " seed 3": kept,
    }
    assert [trials[f"dp 1, seed {seed}"]["seconds"] for seed in (2, 3)] == [0.25, 0.25]
