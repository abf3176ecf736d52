"""`trimaran train --restarts` in a batch script on a real SLURM: a killed task, a lost node, and a node too few."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.commands import finished, rank_pids
from tests.processes import until
from tests.slurm.cluster import SlurmCluster

STEPS = 24


class BatchJob:
    """A script of one command for a job of two nodes, and what it wrote."""

    def __init__(self, slurm: SlurmCluster, folder: Path, nodes: int, dp: str) -> None:
        self.slurm, self.folder = slurm, folder
        layout = f"--set cluster.nodes=2 --set cluster.devices_per_node=1 --set layout.dp={dp}"
        saving = "--set saving.folder=saved --set saving.every=4"
        files = "--metrics metrics.jsonl --heartbeats beats"
        script = f"""#!/bin/bash
trimaran train tiny --steps {STEPS} {layout} {saving} {files} --restarts 3
echo "script: $?"
"""
        options = (f"--nodes={nodes}", "--ntasks-per-node=1", "--no-kill", "--requeue", "--open-mode=append")
        where = (f"--chdir={folder}", f"--output={folder}/log", "--export=ALL,OMP_NUM_THREADS=1")
        self.number = slurm.command("sbatch", "--parsable", *options, *where, input=script).stdout.strip()

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    def has_reached(self, iteration: int) -> bool:
        return any(int(number) >= iteration for number in re.findall(r"^ iteration +(\d+)/", self.log, re.MULTILINE))

    def ranks(self) -> dict[str, int]:
        """The pid of each rank by its node."""
        beats = [json.loads(file.read_text()) for file in (self.folder / "beats").glob("rank-*.json")]
        return {beat["host"]: beat["pid"] for beat in beats}

    def loss_by_iteration(self) -> dict[int, float]:
        records = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        return {record["iteration"]: record["loss"] for record in records}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    metrics = tmp_path_factory.mktemp("undisturbed") / "metrics.jsonl"
    code, _, err = finished("tiny", "--steps", str(STEPS), "--metrics", str(metrics))
    assert (code, err) == (0, "")
    return {record["iteration"]: record["loss"] for record in map(json.loads, metrics.read_text().splitlines())}


@pytest.fixture
def repaired(slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """Nodes that a test takes down come back."""
    yield slurm
    slurm.command("scancel", "--me")
    until(lambda: slurm.command("squeue", "--noheader").stdout == "", "the end of all jobs")
    for node, state in slurm.states().items():
        if "down" in state:
            slurm.command("scontrol", "update", f"nodename={node}", "state=resume")
    until(lambda: set(slurm.states().values()) == {"idle"}, "all nodes idle")


def test_a_killed_task_and_then_a_lost_node_are_replaced(
    repaired: SlurmCluster, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    job = BatchJob(repaired, tmp_path, nodes=3, dp="2")
    until(lambda: job.has_reached(2), "two iterations")
    os.kill(rank_pids(tmp_path / "beats")[1], signal.SIGKILL)
    until(lambda: job.log.count("trimaran: restarting from ") == 1, "the first restart")
    before = job.ranks()
    until(lambda: set(job.ranks().values()).isdisjoint(before.values()) and job.has_reached(9), "the second attempt")
    lost = sorted(job.ranks())[-1]  # not the first, where the script runs
    repaired.notice_failure(lost)
    until(lambda: "script: " in job.log, "the end")
    assert "script: 0" in job.log, job.log
    assert job.log.count("trimaran: restarting from ") == 2
    assert lost not in job.ranks()
    assert len(job.ranks()) == 2
    assert job.loss_by_iteration() == pytest.approx(undisturbed, rel=1e-5)


def test_with_dp_auto_the_run_continues_on_the_nodes_that_are_left(
    repaired: SlurmCluster, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    job = BatchJob(repaired, tmp_path, nodes=2, dp="auto")
    until(lambda: job.has_reached(5), "five iterations")
    repaired.notice_failure(sorted(job.ranks())[-1])
    until(lambda: "script: " in job.log, "the end")
    assert "script: 0" in job.log, job.log
    assert "trimaran: 1 of the 2 nodes allocated work: dp 1 instead of 2, with the same global batch." in job.log
    assert job.loss_by_iteration() == pytest.approx(undisturbed, rel=1e-5)


def test_with_too_few_nodes_left_slurm_requeues_the_job(
    repaired: SlurmCluster, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    job = BatchJob(repaired, tmp_path, nodes=2, dp="2")
    until(lambda: job.has_reached(5), "five iterations")
    repaired.notice_failure(sorted(job.ranks())[-1])
    until(lambda: "script: 0" in job.log, "the end")
    assert "needs 2 nodes, but only 1 of those allocated still work; SLURM will run the batch job again." in job.log
    assert "Restarts=1 " in repaired.command("scontrol", "show", "job", job.number).stdout
    assert job.loss_by_iteration() == pytest.approx(undisturbed, rel=1e-5)
