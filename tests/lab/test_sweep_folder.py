"""A sweep's folder that is damaged, or that somebody else prepared: only what sweep.yaml says runs, nobody else's
process is signalled, no file outside is written, and every refusal is a sentence."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.lab.sweeps import MEGATRON, finished, rows, start, sweep_file, swept, trial_folder, until_started
from tests.processes import end, finish, gone_within
from trimaran.lab.orders import compile_cache
from trimaran.lab.sweep_folder import load_sweep_folder
from trimaran.spec import Mistake
from trimaran.spec.files import load_sweep


def stopped_sweep(folder: Path) -> Path:
    """A sweep of two trials of which none was started."""
    sweep_file(folder, command=MEGATRON, axes={"layout.micro_batch": [1, 2]})
    swept(folder, "s.yaml", "--minutes", "0")
    return folder / "sweeps" / "s"


def refusal(folder: Path) -> str:
    code, out, err = finished(folder, "s.yaml", "--resume")
    assert (code, out) == (2, "")
    assert err.startswith("trimaran: ")
    assert err.count("\n") == 1
    return err


DAMAGED = ["", "{", "[1, 2]", "5", '{"name": 5}', "{}", "\0\0", "a: [", '{"label": 1, "job": 5}', "- x"]


@pytest.mark.parametrize("name", ["sweep.json", "sweep.yaml", "candidates.jsonl"])
def test_a_damaged_file_of_the_sweep_is_a_sentence_that_names_it(tmp_path: Path, name: str) -> None:
    where = stopped_sweep(tmp_path)
    whole = (where / name).read_text()
    for content in [*DAMAGED, whole[: len(whole) // 2]]:
        (where / name).write_text(content)
        with pytest.raises(Mistake, match=name):
            load_sweep_folder(where)
    assert name in refusal(tmp_path)


def test_a_candidate_that_the_sweep_does_not_describe_is_refused(tmp_path: Path) -> None:
    file = stopped_sweep(tmp_path) / "candidates.jsonl"
    first, *others = [json.loads(line) for line in file.read_text().splitlines()]
    first["job"]["environment"]["LD_PRELOAD"] = "/tmp/theirs.so"
    file.write_text("".join(json.dumps(each) + "\n" for each in (first, *others)))
    assert "which sweep.yaml does not describe" in refusal(tmp_path)


def test_a_prepared_trial_folder_runs_nothing_and_writes_nothing_outside(tmp_path: Path) -> None:
    where = stopped_sweep(tmp_path)
    mine = tmp_path / "mine"
    mine.write_text("precious")
    one, two = where / "trials" / "0001", where / "trials" / "0002"
    one.mkdir(parents=True)
    for name in ("stdout", "stderr", ".order.json.partial", "job.yaml"):
        (one / name).symlink_to(mine)
    order = {"trial": "x", "command": ["touch", str(tmp_path / "ran")], "environment": {}, "nodes": 5}
    two.mkdir()
    (two / "order.json").write_text(json.dumps(order))
    for name in ("result.json", "started.json", "submitted.json"):
        (two / name).write_text('{"how": []}')
    code, _, err = finished(tmp_path, "s.yaml", "--resume")
    assert (code, err) == (0, "")
    assert mine.read_text() == "precious"
    assert not (tmp_path / "ran").exists()
    assert sorted((Path(row.source.file).name, row.outcome.status) for row in rows(tmp_path)) == [
        ("0001", "ok"),
        ("0002", "lost"),
        ("0002.2", "ok"),
    ]


def test_a_trials_folder_that_is_a_link_elsewhere_is_refused(tmp_path: Path) -> None:
    where = stopped_sweep(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (where / "trials").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refusal(tmp_path)


def test_ctrl_c_ends_only_a_process_that_supervises_the_trial(tmp_path: Path) -> None:
    """started.json names a process of the user's that is none of the trial's, and the lock is held."""
    sweep_file(tmp_path, command="sleep 1000", axes={"layout.micro_batch": [1, 2]}, place={"parallel": 2})
    harness = start(tmp_path, "s.yaml", "--budget", "1")
    folder = until_started(tmp_path)
    end(harness)
    started = json.loads((folder / "started.json").read_text())
    innocent = subprocess.Popen(["sleep", "1000"])
    try:
        (folder / "started.json").write_text(json.dumps({**started, "supervisor": innocent.pid}))
        resumed = start(tmp_path, "s.yaml", "--resume")
        until_started(tmp_path, 2)
        resumed.send_signal(signal.SIGINT)
        assert resumed.stdout is not None
        assert any("Ctrl-C again: now" in line for line in resumed.stdout)
        resumed.send_signal(signal.SIGINT)
        other = json.loads((trial_folder(tmp_path, 2) / "started.json").read_text())
        assert gone_within(60, other["supervisor"])
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
        os.kill(started["supervisor"], signal.SIGTERM)
    finish(resumed)


def test_a_copy_of_a_sweep_does_not_touch_the_trials_of_the_original(tmp_path: Path) -> None:
    sweep_file(tmp_path, command=f"sleep 1000; {MEGATRON}")
    harness = start(tmp_path, "s.yaml")
    folder = until_started(tmp_path)
    started = json.loads((folder / "started.json").read_text())
    subprocess.run(["cp", "-r", tmp_path / "sweeps" / "s", tmp_path / "sweeps" / "copy"], check=True)
    code, _, err = finished(tmp_path, "--resume", "--folder", "sweeps/copy")
    assert code == 2
    assert "is a copy of" in err
    assert not gone_within(0, started["trainer"])
    end(harness)
    os.kill(started["supervisor"], signal.SIGTERM)
    assert gone_within(60, started["supervisor"])


def test_a_sweep_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    stopped_sweep(tmp_path).chmod(0o777)
    assert "chmod o-w" in refusal(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o770, "a link"])
def test_compiled_code_is_kept_only_where_nobody_else_can_write(tmp_path: Path, mode: int | str) -> None:
    file = sweep_file(tmp_path, place={"kind": "slurm"})
    sweep, compiled = load_sweep(file), tmp_path / "compiled"
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)}
    assert compile_cache(sweep, tmp_path, {}) == environment
    assert compiled.stat().st_mode & 0o777 == 0o700
    assert compile_cache(sweep, tmp_path, {}) == environment
    compiled.rmdir()
    if isinstance(mode, int):
        compiled.mkdir()
        compiled.chmod(mode)
    else:
        compiled.symlink_to(tmp_path)
    with pytest.raises(Mistake, match="compiled code"):
        compile_cache(sweep, tmp_path, {})


def test_damaged_metrics_and_results_are_no_traceback(tmp_path: Path) -> None:
    sweep_file(tmp_path, measuring={"iterations": 2})
    swept(tmp_path, "s.yaml")
    folder = trial_folder(tmp_path)
    (tmp_path / "trimaran.sqlite").unlink()
    for content in ['{"seconds": "x", "warm_up": false}\n', '{"seconds": NaN, "warm_up": false}\n', "[]\n", "\0"]:
        (folder / "metrics.jsonl").write_text(content)
        (tmp_path / "trimaran.sqlite").unlink(missing_ok=True)
        (trial,) = swept(tmp_path, "s.yaml", "--resume")["trials"]
        assert (trial["status"], trial["seconds"]) == ("fail", None)
