"""`trimaran train` as a user runs it: directly, under torchrun, by SLURM's variables; its log, metrics, heartbeats."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.commands import ONE_THREAD, finished, losses, rank_pids, train
from tests.processes import finish
from trimaran.cost.flops import FORMULAS, TrainingStep
from trimaran.ledger.recognise import read_file
from trimaran.spec import Setup
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings

LAYOUT = ("--set", "layout.tp=2", "--set", "layout.dp=2", "--set", "layout.zero=1", "--steps", "6")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Four processes that train `tiny` for six iterations: where the files are, and the log."""
    folder = tmp_path_factory.mktemp("run")
    code, out, err = finished(
        "tiny", *LAYOUT, "--metrics", str(folder / "metrics.jsonl"), "--heartbeats", str(folder / "beats")
    )
    assert (code, err) == (0, "")
    (folder / "train.log").write_text(out)
    return folder, out


def test_the_loss_falls_and_is_that_of_a_single_process(run: tuple[Path, str]) -> None:
    code, single, _ = finished("tiny", "--steps", "6")
    assert code == 0
    one, four = ([float(loss) for loss in losses(log)] for log in (single, run[1]))
    assert four == pytest.approx(one, rel=1e-5)
    assert four[-1] < four[0] - 0.1


def test_the_prediction_comes_before_the_first_iteration(run: tuple[Path, str]) -> None:
    before, _, _ = run[1].partition("\n iteration ")
    assert "Predicted: " in before
    assert "GiB a device" in before


def test_our_importer_reads_the_log_as_the_job_that_ran(run: tuple[Path, str]) -> None:
    (trial,) = read_file(run[0] / "train.log").trials
    ran = Setup.of_job(apply_settings(load_job("tiny"), [s for s in LAYOUT if "=" in s]))
    # A log does not name the machine, and its vocabulary is padded.
    logged = ran.replace(device=None, devices_per_node=None, nodes=None, vocab=512, environment={})
    assert trial.setup.replace(environment={}) == logged
    assert trial.outcome.status == "ok"
    records = [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]
    assert trial.outcome.warmup == sum(record["warm_up"] for record in records)
    assert (trial.outcome.warmup, trial.outcome.iterations) == (2, 4)


def test_metrics_have_a_record_for_every_iteration(run: tuple[Path, str]) -> None:
    records = [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["warm_up"] for record in records] == [True, True, False, False, False, False]
    assert [record["consumed_samples"] for record in records] == [16, 32, 48, 64, 80, 96]
    assert [record["consumed_tokens"] for record in records] == [16 * 128 * i for i in range(1, 7)]
    assert [f"{record['loss']:.6E}" for record in records] == losses(run[1])
    model = load_job("tiny").model
    for record in records:
        assert record["tokens_per_second"] == pytest.approx(16 * 128 / record["seconds"])
        flops = FORMULAS["model"](TrainingStep(model, 16, tp=2))
        assert record["tflops"]["model"] == pytest.approx(flops / record["seconds"] / 4 / 1e12)
        assert set(record["tflops"]) == set(FORMULAS)
    assert 0.1 < records[-1]["peak_memory_gib"][0] < 2.0  # of which torch itself is about 0.3


def test_every_rank_leaves_a_heartbeat(run: tuple[Path, str]) -> None:
    beats = [json.loads(file.read_text()) for file in sorted((run[0] / "beats").glob("*.json"))]
    assert [(beat["rank"], beat["doing"], beat["iteration"]) for beat in beats] == [(r, "done", 6) for r in range(4)]
    assert len(set(rank_pids(run[0] / "beats"))) == 4


def test_under_torchrun_the_processes_join_and_losses_are_the_same(run: tuple[Path, str]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "-m", "trimaran.engine", "tiny"]
    ran = subprocess.run([*command, *LAYOUT], capture_output=True, text=True, env=ONE_THREAD, check=True)
    assert losses(ran.stdout) == losses(run[1])


def test_under_srun_the_tasks_join_by_slurms_variables(run: tuple[Path, str]) -> None:
    slurm = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "127.0.0.1",
    }
    tasks = [
        train(
            "tiny",
            "--set",
            "layout.pp=2",
            "--steps",
            "6",
            environment={**slurm, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)},
        )
        for task in range(2)
    ]
    (_, first_error), (log, _) = (finish(task) for task in tasks)
    assert [task.returncode for task in tasks] == [0, 0], first_error
    assert [float(loss) for loss in losses(log)] == pytest.approx([float(loss) for loss in losses(run[1])], rel=1e-5)
