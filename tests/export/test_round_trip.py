"""Any Job, exported and read again, is the same Job but for the fields that were reported as unsupported."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings

from tests.export.launchable import covered, differences, launchable
from trimaran.export.formats import TARGETS, read_launch_file
from trimaran.export.partial_job import complete_job
from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_job

# Which file is read again, and whether it can carry the job's name.
MAIN = {
    "megatron-deepspeed": ("train.sh", True),
    "megatron-lm": ("train.sh", True),
    "deepspeed-json": ("ds_config.json", False),
    "slurm": ("train.slurm", True),
}
many = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.mark.parametrize("target", MAIN)
@many
@given(job=launchable())
def test_only_fields_reported_as_unsupported_differ_after_a_round_trip(target: str, job: Job) -> None:
    try:
        exported = TARGETS[target](job)
    except Mistake:
        assume(False)  # no layout of that trainer is near; the sentence is tested elsewhere
    file, carries_names = MAIN[target]
    found = read_launch_file(exported.files[file], file)
    assert found is not None
    model, cuts = (
        (None, [])
        if carries_names
        else (job.model, [f"layout.{cut}={getattr(job.layout, cut)}" for cut in ("tp", "pp")])
    )
    back = complete_job(found, job.cluster, model, job.name, cuts)
    lost = {each.field for each in exported.unsupported}
    different = differences(job, back) - (set() if carries_names else {"name"})  # which is then that of the file
    assert covered(different, lost), different - lost
    assert all(each.why.endswith(".") for each in exported.unsupported)


@many
@given(job=launchable())
def test_our_own_job_file_is_the_job(tmp_path_factory: pytest.TempPathFactory, job: Job) -> None:
    exported = TARGETS["trimaran"](job)
    file: Path = tmp_path_factory.mktemp("job") / "job.yaml"
    file.write_text(exported.files["job.yaml"], "utf-8")
    assert covered(differences(job, load_job(file)), {each.field for each in exported.unsupported})
