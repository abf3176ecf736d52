"""The SLURM of these tests is a real one: nodes fail and return, a controller forgets nothing, limits are enforced."""

import sys
from pathlib import Path

import pytest

from tests.processes import gone_within, until
from tests.slurm.cluster import SlurmCluster
from tests.slurm.settings import CGROUPS

EATER = "kept = [bytearray(b'x') * 20_000_000 for _ in range(40)]"  # 0.8 GB, and no more if nothing stops it


def submitted(cluster: SlurmCluster, script: str) -> str:
    """The job's id, once it runs on two nodes."""
    sbatch = ("sbatch", "--parsable", "--nodes=2", "--no-requeue", "--output=/dev/null")
    job = cluster.command(*sbatch, input=f"#!/bin/sh\n{script}\n").stdout.strip()
    until(lambda: squeue(cluster, job, "%T") == "RUNNING", "the start of the job")
    return job


def squeue(cluster: SlurmCluster, job: str, what: str) -> str:
    return cluster.command("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={what}").stdout.strip()


def test_a_failed_node_fails_its_job_and_returns(slurm: SlurmCluster) -> None:
    job = submitted(slurm, "srun sleep 100")
    _, node = slurm.command("scontrol", "show", "hostnames", squeue(slurm, job, "%N")).stdout.split()
    slurm.fail_node(node)
    slurm.notice_failure(node)
    until(lambda: squeue(slurm, job, "%T %r") == "NODE_FAIL NodeDown", "the failure of the job")
    assert slurm.states()[node].startswith("down")
    slurm.start_node(node)
    until(lambda: slurm.states()[node] == "idle", "the return of the node")


def test_jobs_outlive_the_controller(slurm: SlurmCluster) -> None:
    job = submitted(slurm, "sleep 100")
    slurm.stop_controller()
    assert slurm.command("scontrol", "ping").returncode == 1
    slurm.start_controller()
    assert squeue(slurm, job, "%T") == "RUNNING"
    slurm.command("scancel", job)
    until(lambda: squeue(slurm, job, "%T") == "CANCELLED", "the end of the job")


def test_a_task_with_too_much_memory_is_killed_by_the_kernel(slurm: SlurmCluster) -> None:
    if not slurm.settings.with_cgroups:
        pytest.skip("cgroups cannot be written here, so SLURM cannot limit memory")
    step = slurm.command("srun", "-n1", "--mem=200", sys.executable, "-c", EATER)
    assert step.returncode == 1
    assert "task 0: Out Of Memory" in step.stderr


def test_a_second_cluster_is_independent_and_leaves_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submitted(slurm, "sleep 100")
    pid = tmp_path / "pid"
    with SlurmCluster(nodes=2) as other:
        assert not set(other.nodes) & set(slurm.nodes)
        assert submitted(other, f"echo $$ > {pid}; srun sleep 100") != job
        until(pid.exists, "the start of the script")
    assert not other.folder.exists()
    assert not any(list(CGROUPS.glob(f"*/slurm_{node}")) for node in other.nodes)
    assert gone_within(60, int(pid.read_text()))
    assert squeue(slurm, job, "%T") == "RUNNING"
    slurm.command("scancel", job)
    until(lambda: squeue(slurm, job, "%T") == "CANCELLED", "the end of the job")
