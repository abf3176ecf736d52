"""What a run has computed is not lost to a kill, a full disk, or a step that fails."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disks import fill, small_disk
from tests.engine.commands import finished, losses, train, until_iteration
from tests.processes import until
from trimaran.engine.checkpoint.folder import newest_checkpoint

# Small and quick: a step takes milliseconds.
SMALL = ("--set", "model.layers=1", "--set", "model.hidden=32", "--set", "model.seq_len=16")
SMALL += ("--set", "batch.size=4", "--set", "layout.micro_batch=2")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "64k") as folder:
        yield folder


@pytest.mark.parametrize("layout", [(), ("--set", "layout.tp=2", "--set", "layout.dp=2")], ids=["one rank", "tp2 dp2"])
def test_an_asynchronous_checkpoint_is_complete_when_it_is_written(layout: tuple[str, ...], tmp_path: Path) -> None:
    """Not only at the next save: a run killed between the two resumes from the first."""
    every = 300
    saving = (
        "--set",
        f"saving.folder={tmp_path}",
        "--set",
        f"saving.every={every}",
        "--set",
        "saving.asynchronous=true",
    )
    process = train("tiny", "--steps", "100000", *SMALL, *layout, *saving)
    until_iteration(process, every)
    until(lambda: newest_checkpoint(tmp_path), "a complete checkpoint")
    os.kill(process.pid, signal.SIGKILL)
    out, _ = process.communicate()
    seen = [line for line in out.splitlines() if line.startswith(" iteration ")]
    assert all(int(line[11:19]) < 2 * every for line in seen)
    code, out, _ = finished("tiny", "--steps", str(every + 1), *SMALL, *layout, *saving)
    assert code == 0
    assert len(losses(out)) == 1


@pytest.mark.parametrize("option", ["--metrics", "--heartbeats", "--tensorboard"])
def test_a_full_disk_under_telemetry_does_not_end_a_run(option: str, disk: Path, tmp_path: Path) -> None:
    target = disk / ("metrics.jsonl" if option == "--metrics" else "folder")
    if option != "--metrics":
        target.mkdir()
    fill(disk)
    saving = ("--set", f"saving.folder={tmp_path / 'saved'}")
    code, out, err = finished("tiny", "--steps", "30", *SMALL, *saving, option, str(target))
    assert code == 0, err
    assert len(losses(out)) == 30
    assert err.count("No space left on device") == 1
    assert newest_checkpoint(tmp_path / "saved") == tmp_path / "saved" / "step-00000030"


def test_a_log_that_fills_its_disk_does_not_end_a_run(disk: Path, tmp_path: Path) -> None:
    """300 lines of some 400 bytes, on a disk of 64 KiB."""
    metrics = tmp_path / "metrics.jsonl"
    process = train(*("tiny", "--steps", "300", *SMALL, "--metrics", str(metrics)), shell=f'"$@" > {disk / "log"}')
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert err.count("No space left on device") == 1
    assert [json.loads(line)["iteration"] for line in metrics.read_text().splitlines()] == list(range(1, 301))


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_checkpoint_that_does_not_fit_is_told_and_the_older_one_kept(asynchronous: str, disk: Path) -> None:
    """Training continues; only where the last one cannot be written the run does not end with 0."""
    subprocess.run(["mount", "-o", "remount,size=1536k", disk], check=True)
    saving = (
        "--set",
        f"saving.folder={disk}",
        "--set",
        "saving.every=2",
        "--set",
        f"saving.asynchronous={asynchronous}",
    )
    assert finished("tiny", "--steps", "2", *SMALL, *saving)[0] == 0
    fill(disk)
    code, out, err = finished("tiny", "--steps", "5", *SMALL, *saving)
    assert code == 4
    assert len(losses(out)) == 3  # 3, 4, 5
    assert "The checkpoint of iteration 4 could not be written: " in err
    assert "No space left on device; the newest is step-00000002 in " in err
    assert "The checkpoint of iteration 5 could not be written: " in err
    assert sorted(path.name for path in disk.iterdir()) == ["filler", "step-00000002"]
    (disk / "filler").unlink()
    assert finished("tiny", "--steps", "5", *SMALL, *saving)[0] == 0


def test_fp16_saves_before_its_first_successful_step(tmp_path: Path) -> None:
    """A loss scale that overflows at first: Adam has no moments yet."""
    scale = (
        "--set",
        "precision=fp16",
        "--set",
        "recipe.loss_scale.initial=1.0e+30",
        "--set",
        "recipe.loss_scale.hysteresis=1",
    )
    saving = ("--set", f"saving.folder={tmp_path}", "--set", "saving.every=1")
    code, _, err = finished("tiny", "--steps", "2", *SMALL, *scale, *saving)
    assert (code, err) == (0, "")
    code, out, _ = finished("tiny", "--steps", "90", *SMALL, *scale, *saving)
    assert code == 0
    _, alone, _ = finished("tiny", "--steps", "90", *SMALL, *scale)
    assert losses(out) == losses(alone)[2:]


def test_a_run_whose_loss_is_nan_says_so_and_keeps_its_last_finite_checkpoint(tmp_path: Path) -> None:
    saving = ("--set", f"saving.folder={tmp_path}", "--set", "saving.every=1", "--set", "saving.keep=100")
    code, out, err = finished("tiny", "--steps", "12", *SMALL, "--set", "recipe.learning_rate=1.0e+20", *saving)
    assert code == 6
    assert "is not finite: the weights after it were not saved" in err
    finite = [loss for loss in losses(out) if loss != "NAN"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert int(newest.name[5:]) <= len(finite) < 12
