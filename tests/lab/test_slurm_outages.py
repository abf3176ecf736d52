"""A real SLURM whose controller goes away and comes back, and whose nodes are taken down: no trial is burned or run
twice."""

import signal
from pathlib import Path

import pytest

from tests.lab.sweeps import (
    MEGATRON,
    finished,
    rows,
    slurm_sweep,
    start,
    submitted,
    trial_folder,
    trials_of,
    until_started,
    waiting_for,
)
from tests.processes import Process, finish, until
from tests.slurm.cluster import SlurmCluster
from trimaran.lab import slurm as launcher_module
from trimaran.lab import supervise
from trimaran.lab.choose import candidates
from trimaran.lab.sweep_folder import Attempt
from trimaran.spec.files import load_sweep

SLEEP = "sleep 600"
WAITS = "SLURM's controller does not answer"


def said(harness: Process, words: str) -> bool:
    """Waits for a line of a harness that was started with --json."""
    assert harness.stderr is not None
    return any(words in line for line in harness.stderr)


def jobs_named(slurm: SlurmCluster, trial: str) -> list[str]:
    known = slurm.command("squeue", "-h", "-t", "all", "-o", "%j").stdout.split()
    return [name for name in known if name.startswith(trial)]


def test_a_job_that_cannot_be_submitted_waits_for_the_controller(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm_sweep(tmp_path, command=MEGATRON, axes={"layout.micro_batch": [1, 2]})
    slurm.stop_controller()
    try:
        harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
        waits = said(harness, WAITS)
    finally:
        slurm.start_controller()
    assert waits
    trials = trials_of(harness)
    assert [trial["status"] for trial in trials] == ["ok", "ok"]
    assert {trial["id"] for trial in trials} == {row.id for row in rows(tmp_path)}  # no second attempts
    assert len(jobs_named(slurm, trials[0]["id"].partition("/")[0])) == 2


def test_a_job_that_was_accepted_though_sbatch_timed_out_is_not_submitted_again(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """A client in front of the real one reports the first time what sbatch does when the reply is lost."""
    client = tmp_path / "bin" / "sbatch"
    client.parent.mkdir()
    real = slurm.command("sh", "-c", "command -v sbatch").stdout.strip()
    client.write_text(
        f'#!/bin/sh\n{real} "$@" || exit\nmkdir {tmp_path}/first 2>/dev/null || exit 0\n'
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2\nexit 1\n"
    )
    client.chmod(0o755)
    slurm_sweep(tmp_path, command=MEGATRON)
    environment = {**slurm.environment, "PATH": f"{client.parent}:{slurm.environment['PATH']}"}
    harness = start(tmp_path, "s.yaml", "--json", environment=environment)
    (trial,) = trials_of(harness)
    assert (trial["status"], trial["reason"]) == ("ok", "")
    assert jobs_named(slurm, trial["id"]) == [trial["id"]]


def test_ctrl_c_while_the_controller_is_down_ends_the_sweep_and_resume_tries_all(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    slurm_sweep(tmp_path, command=MEGATRON, axes={"layout.micro_batch": [1, 2]}, place={"parallel": 1})
    slurm.stop_controller()
    try:
        harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
        assert said(harness, WAITS)
        harness.send_signal(signal.SIGINT)
        finish(harness)
    finally:
        slurm.start_controller()
    assert harness.returncode == 5
    resumed = start(tmp_path, "s.yaml", "--resume", "--json", environment=slurm.environment)
    assert [trial["status"] for trial in trials_of(resumed)] == ["ok", "ok"]


def test_ctrl_c_twice_leaves_a_running_job_to_resume_when_the_controller_is_down(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    slurm_sweep(tmp_path, command=f"{waiting_for(go)}; {MEGATRON}")
    harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
    submitted(tmp_path)
    slurm.stop_controller()
    try:
        assert said(harness, WAITS)
        harness.send_signal(signal.SIGINT)
        assert said(harness, "Ctrl-C again: now")
        harness.send_signal(signal.SIGINT)
        _, err = finish(harness)
    finally:
        slurm.start_controller()
    assert harness.returncode == 5
    assert "--resume" in err
    go.touch()
    code, _, _ = finished(tmp_path, "s.yaml", "--resume", environment=slurm.environment)
    assert code == 0
    assert [row.outcome.status for row in rows(tmp_path)] == ["ok"]


def test_a_step_that_cannot_be_created_waits_for_the_controller(
    slurm: SlurmCluster, allocation: dict[str, str], tmp_path: Path
) -> None:
    slurm_sweep(tmp_path, axes={"layout.dp": [1]}, place={"kind": "allocation"}, measuring={"silence_minutes": 5})
    slurm.stop_controller()
    try:
        harness = start(tmp_path, "s.yaml", "--json", environment=allocation)
        waits = said(harness, WAITS)
    finally:
        slurm.start_controller()
    assert waits
    (trial,) = trials_of(harness)
    assert (trial["status"], trial["reason"]) == ("ok", "")


def test_a_trainer_whose_script_finds_no_controller_is_started_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    go, tried = tmp_path / "go", tmp_path / "tried"
    command = f"{waiting_for(go)}; touch {tried}; squeue > /dev/null || exit; {MEGATRON}"
    slurm_sweep(tmp_path, command=command, axes={"layout.dp": [1]})
    harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
    submitted(tmp_path)
    slurm.stop_controller()
    try:
        go.touch()
        log = trial_folder(tmp_path) / "stderr"
        until(lambda: tried.exists() and "slurm controller" in log.read_text(), "the failure of squeue")
        tried.unlink()
        until(tried.exists, "another try")
    finally:
        slurm.start_controller()
    (trial,) = trials_of(harness)
    assert (trial["status"], trial["reason"]) == ("ok", "")


def taken_down(slurm: SlurmCluster, node: str, harness: Process) -> list[tuple[str, str]]:
    """What becomes of a sweep when its trial's node is set down, as an administrator does, while all processes live."""
    slurm.command("scontrol", "update", f"nodename={node}", "state=down", "reason=service")
    try:
        return [(trial["status"], trial["reason"]) for trial in trials_of(harness)]
    finally:
        slurm.command("scontrol", "update", f"nodename={node}", "state=resume")
        until(lambda: slurm.states()[node] in ("idle", "mixed", "allocated"), "the return of the node")


def test_a_step_on_a_node_that_is_taken_down_is_lost_and_tried_elsewhere(
    slurm: SlurmCluster, allocation: dict[str, str], tmp_path: Path
) -> None:
    command = f'srun --jobid=$SLURM_JOB_ID -N1 -n1 -w "$TRIMARAN_NODES" --overlap bash -c "{SLEEP}"'
    command = f"case {{folder}} in *.2) {MEGATRON}; echo on $TRIMARAN_NODES;; *) {command};; esac"
    slurm_sweep(tmp_path, command=command, axes={"layout.dp": [1]}, place={"kind": "allocation"})
    harness = start(tmp_path, "s.yaml", "--json", environment=allocation)
    until_started(tmp_path)
    job = allocation["SLURM_JOB_ID"]
    steps = ("squeue", "-h", "-s", "-j", job, "-o", "%j %N")
    until(lambda: "bash" in slurm.command(*steps).stdout, "the step")
    node = next(line.split()[1] for line in slurm.command(*steps).stdout.splitlines() if line.startswith("bash"))
    outcomes = taken_down(slurm, node, harness)
    assert outcomes == [("lost", f"Node {node} failed, or was taken down."), ("ok", "")]
    assert f"on {node}" not in (trial_folder(tmp_path).with_name("0001.2") / "stdout").read_text()


def test_a_job_whose_second_node_is_taken_down_is_lost(slurm: SlurmCluster, tmp_path: Path) -> None:
    started = tmp_path / "started"
    step = f'srun -K1 bash -c "touch {started}.$SLURM_PROCID; {SLEEP}"'
    # As trainers do that catch SIGTERM, it ends with 0, and has measured nothing.
    command = f"case {{folder}} in *.2) {MEGATRON};; *) {step}; exit 0;; esac"
    slurm_sweep(tmp_path, command=command, place={"options": [f"--exclude={slurm.nodes[3]}"]})
    harness = start(tmp_path, "s.yaml", "--json", environment=slurm.environment)
    job = submitted(tmp_path)
    until(lambda: list(tmp_path.glob("started.*")), "the step")
    names = slurm.command("squeue", "-h", "-j", job, "-o", "%N").stdout.strip()
    _, node = slurm.command("scontrol", "show", "hostnames", names).stdout.split()
    outcomes = taken_down(slurm, node, harness)
    assert [status for status, _ in outcomes] == ["lost", "ok"]
    assert "ode" in outcomes[0][1]


def test_a_job_that_could_not_be_submitted_for_long_is_lost_and_never_runs(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher_module, "MINUTES_TO_SUBMIT", 0.01)
    slurm_sweep(tmp_path, command=MEGATRON)
    sweep = load_sweep(tmp_path / "s.yaml")
    attempt = Attempt("s-1", tmp_path, 1, candidates(sweep)[0][0])
    launcher = launcher_module.SlurmJobLauncher(sweep)
    slurm.stop_controller()
    try:
        launcher.start(attempt)
        assert launcher.look(attempt) == ("running", WAITS)
        until(lambda: launcher.look(attempt).status == "lost", "the end of the wait")
    finally:
        slurm.start_controller()
    assert supervise.main(attempt.folder) == 1  # what a job does that was accepted all the same
    assert not (attempt.folder / "started.json").exists()
