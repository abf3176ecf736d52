"""Our trainer under a real SLURM of four nodes: joined, killed, out of time, and resumed."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.engine.commands import finished, losses, rank_pids, until_iteration
from tests.processes import Process, finish, gone_within, start, until
from tests.slurm.cluster import SlurmCluster

DOCS = Path(__file__).parents[2] / "docs" / "slurm.md"
SOON = 120.0  # seconds, on a busy machine; a hang would last for the ten minutes that ranks wait for each other


def srun(slurm: SlurmCluster, options: str, *arguments: str) -> Process:
    """A step on two nodes."""
    command = ["srun", "-N2", "-c1", *options.split(), "trimaran", "train", "tiny", *arguments]
    return start(command, {**slurm.environment, "OMP_NUM_THREADS": "1"})


def ours(stderr: str) -> list[str]:
    """The lines that are not SLURM's."""
    return [line for line in stderr.splitlines() if not line.startswith(("srun: ", "slurmstepd"))]


def test_four_tasks_on_two_nodes_give_the_losses_of_one_process(slurm: SlurmCluster) -> None:
    layout = ("--set", "layout.dp=2", "--set", "layout.pp=2")
    step = srun(slurm, "--ntasks-per-node=2 -K1", *layout, "--steps", "4")
    log, err = finish(step)
    assert (step.returncode, err) == (0, "")
    code, alone, said = finished("tiny", "--steps", "4")
    assert (code, said) == (0, "")
    assert len(losses(log)) == 4
    assert [float(loss) for loss in losses(log)] == pytest.approx([float(loss) for loss in losses(alone)], rel=1e-5)


def test_a_killed_task_ends_the_step_and_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    step = srun(
        slurm, "--ntasks-per-node=1 -K1", "--set", "layout.dp=2", "--steps", "100000", "--heartbeats", str(tmp_path)
    )
    until_iteration(step, 2)
    pids = rank_pids(tmp_path)
    os.kill(pids[1], signal.SIGKILL)
    assert gone_within(SOON, step.pid)
    _, err = finish(step)
    assert step.returncode != 0
    assert re.search(r"^srun: error: \w+: task 1: Killed$", err, re.MULTILINE)
    assert len(ours(err)) <= 1  # srun may end the other before it has noticed
    assert all(line.startswith("trimaran: Rank 0 lost its connection") for line in ours(err))
    assert all(gone_within(SOON, pid) for pid in pids)


def test_a_wrong_number_of_tasks_is_one_sentence(slurm: SlurmCluster) -> None:
    step = srun(slurm, "-n3", "--set", "layout.dp=4")
    _, err = finish(step)
    assert step.returncode == 2
    assert ours(err) == [
        "trimaran: 3 processes were started, but dp x tp x pp = 4;"
        " start 4, or change the layout so that it has 3 devices."
    ]


def test_the_script_of_the_docs_saves_before_its_time_limit_and_resumes(slurm: SlurmCluster, tmp_path: Path) -> None:
    script, _ = re.findall(r"^```bash\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    sbatch = ("sbatch", "--parsable", f"--chdir={tmp_path}", "--export=ALL,OMP_NUM_THREADS=1")
    job = slurm.command(*sbatch, input=script).stdout.strip()
    file = tmp_path / f"tiny-{job}.log"

    def iterations() -> list[int]:
        log = file.read_text() if file.exists() else ""
        return [int(number) for number in re.findall(r"^ iteration +(\d+)/", log, re.MULTILINE)]

    until(lambda: len(iterations()) >= 2, "two iterations")
    slurm.command("scontrol", "update", f"jobid={job}", "timelimit=2")  # minutes, less than the signal's five
    until(lambda: "trimaran: interrupted after iteration" in file.read_text(), "the checkpoint before the limit")
    slurm.command("scontrol", "update", f"jobid={job}", "timelimit=60")
    (last,) = re.findall(r"interrupted after iteration (\d+) of 100000, saved in checkpoints\.", file.read_text())
    assert iterations()[-1] == int(last)
    assert (tmp_path / "checkpoints" / f"step-{int(last):08d}").is_dir()
    until(lambda: iterations()[-1] > int(last), "the resumed run")
    assert iterations() == list(range(1, len(iterations()) + 1))
    assert "Restarts=1 " in slurm.command("scontrol", "show", "job", job).stdout
    slurm.command("scancel", job)
    until(lambda: slurm.command("squeue", "--noheader").stdout == "", "the end of the job")
