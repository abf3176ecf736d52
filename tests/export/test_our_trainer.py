"""What is exported for our own trainer trains."""

import os
import sys
from pathlib import Path

from tests.engine.commands import ENVIRONMENT, losses
from tests.export.parsers import checked_syntax
from tests.processes import finish, start
from trimaran.export.formats import TARGETS
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings

OURS = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_the_exported_script_trains_the_job(tmp_path: Path) -> None:
    """From any folder, with options passed on; the loss begins at that of equal probabilities, ln 512 = 6.24."""
    folder = tmp_path / "with space"
    folder.mkdir()
    exported = TARGETS["trimaran"](apply_settings(load_job("tiny"), ["steps=2"]))
    for name, text in exported.files.items():
        (folder / name).write_text(text)
    assert exported.unsupported == ()
    run = ["bash", str(folder / "run.sh"), "--metrics", "metrics.jsonl"]
    process = start(run, OURS, tmp_path)
    log, err = finish(process)
    assert (process.returncode, err) == (0, "")
    first, second = map(float, losses(log))
    assert 6.0 < second < first < 6.5
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_every_script_for_our_trainer_is_valid_shell() -> None:
    for target, wanted in (("slurm", {"train.slurm"}), ("trimaran", {"run.sh", "train.slurm"})):
        files = TARGETS[target](load_job("gpt-1b3-h200")).files
        assert wanted <= files.keys()
        for name in wanted:
            checked_syntax(files[name])


def test_a_job_of_another_trainer_is_adapted_to_ours_and_reported() -> None:
    bloom = load_job(Path(__file__).parents[2] / "examples" / "jobs" / "bloom-176b.yaml")
    exported = TARGETS["trimaran"](bloom.replace(batch={"size": 2048}))
    assert [each.field for each in exported.unsupported] == ["trainer"]
